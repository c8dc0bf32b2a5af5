package cni

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

var quiet = slog.New(slog.DiscardHandler)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Other files near a missing directory are of no interest.
func TestOnlyConfigIsFollowed(t *testing.T) {
	f := Follower{Log: quiet}
	dir := filepath.Join(t.TempDir(), "net.d")
	f.Start(dir)
	defer f.Close()
	before := f.now.Load()
	f.seen(dir + "x/10.conf")
	f.seen(filepath.Join(filepath.Dir(dir), "other"))
	if f.now.Load() != before {
		t.Error("read again for nothing")
	}
	f.seen("") // events were lost
	if f.now.Load() == before {
		t.Error("not read again")
	}
}

// Without inotify the files are read each time.
func TestConfigWithoutInotify(t *testing.T) {
	f := Follower{Log: quiet}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "10.conf"), []byte("{"), 0o644))
	if _, err := f.Current(dir); !errors.Is(err, ErrConfig) {
		t.Errorf("%v", err)
	}
	f.Follow(dir)
	must(t, os.Remove(filepath.Join(dir, "10.conf")))
	if list, err := f.Current(dir); list != nil || err != nil {
		t.Errorf("%v, %v", list, err)
	}
	must(t, f.Close())
}

// Watches are few on a busy node: without one the files are read each time.
func TestConfigWithoutWatches(t *testing.T) {
	f := Follower{Log: quiet}
	dir := t.TempDir()
	f.Start(dir)
	must(t, os.WriteFile(filepath.Join(dir, "10.conf"), []byte("{"), 0o644))
	must(t, f.watcher.Close()) // adding fails from now on
	<-f.done
	f.Follow(dir)
	if _, err := f.Current(dir); !errors.Is(err, ErrConfig) {
		t.Errorf("%v", err)
	}
	must(t, os.Remove(filepath.Join(dir, "10.conf")))
	if list, err := f.Current(dir); list != nil || err != nil {
		t.Errorf("%v, %v", list, err)
	}
}
