package base

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/runtime"
)

// rebuilding is a store with one complete container.
func rebuilding(t *testing.T) (s *Store, rec *Record) {
	s, err := NewStore(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	rec = &Record{
		Engine: "coracle", ID: "one", Bundle: "/b", Created: time.Now().UTC(), Own: []byte(`{"namespaces":1}`),
		CgroupPaths: map[string]string{"": "/sys/fs/cgroup/none/one"},
	}
	if err := s.Claim(rec); err != nil {
		t.Fatal(err)
	}
	rec.Init = Process{Pid: 1 << 22, Start: 5}
	if err := rec.Write(s.ContainerDir("one")); err != nil {
		t.Fatal(err)
	}
	return s, rec
}

func TestRebuild(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"cut":     func(path string) error { return os.Truncate(path, 20) },
		"missing": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			s, rec := rebuilding(t)
			path := filepath.Join(s.ContainerDir("one"), recordFile)
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Load("one"); !errors.Is(err, recordfile.ErrDamaged) {
				t.Errorf("load: %v", err)
			}
			if ours, err := rec.isIn(s.ContainerDir("one")); !ours || err != nil {
				t.Errorf("a handle that was loaded before: %v, %v", ours, err)
			}
			if _, err := s.Rebuild("one", "coracle", runtime.Known{Pid: rec.Init.Pid, StartTime: rec.Init.Start}); err != nil {
				t.Fatal(err)
			}
			now, err := s.Load("one")
			if err != nil {
				t.Fatal(err)
			}
			if now.Init != rec.Init || now.Engine != rec.Engine || string(now.Own) != string(rec.Own) ||
				now.CgroupPaths[""] != rec.CgroupPaths[""] || !now.Created.Equal(rec.Created) {
				t.Errorf("record %+v, want %+v", now, rec)
			}
			if _, err := os.Stat(path + badSuffix); name == "cut" && err != nil {
				t.Error(err)
			}
			if err := s.Release(t.Context(), now); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// A record cannot be rebuilt if neither the engine nor its caller knows the container.
func TestRebuildOfNothing(t *testing.T) {
	s, _ := rebuilding(t)
	if _, err := s.Rebuild("two", "coracle", runtime.Known{}); !errors.Is(err, runtime.ErrNotFound) {
		t.Error(err)
	}
}

// Neither Load nor List nor the first Claim removes a record of a newer program.
func TestNewerRecord(t *testing.T) {
	s, _ := rebuilding(t)
	path := filepath.Join(s.ContainerDir("one"), recordFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(b), `"version":1`, `"version":2`, 1)
	if err := os.WriteFile(path, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckRecords(); recordfile.Newer(err) == nil {
		t.Errorf("check: %v", err)
	}
	if _, err := s.Load("one"); recordfile.Newer(err) == nil {
		t.Errorf("load: %v", err)
	}
	if ids, err := s.List(); err != nil || len(ids) != 1 {
		t.Errorf("list: %v, %v", ids, err)
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != newer {
		t.Errorf("record %s, %v", now, err)
	}
}

func TestCgroupsOnlyOfTheContainer(t *testing.T) {
	for path, want := range map[string]string{
		"/coracle/one":                            "/coracle/one",
		"/coracle/one/below/it":                   "/coracle/one",
		"/kubepods.slice/p.slice/cri-one.scope/x": "/kubepods.slice/p.slice/cri-one.scope",
		"/": "", "/user.slice": "", "/coracle/one-more": "", "/coracle/one.scope.d": "",
	} {
		if got := upTo(path, "one"); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
