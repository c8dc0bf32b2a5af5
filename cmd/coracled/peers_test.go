package main

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fsnotify/fsnotify"

	"github.com/coracle-project/coracle/cmd/coracled/config"
)

// A file that cannot be read is reported once, not at each attempt. The nodes of before stay.
func TestFileOfPeersIsDamaged(t *testing.T) {
	var log bytes.Buffer
	n := &node{log: slog.New(slog.NewTextHandler(&log, nil))}
	path := filepath.Join(t.TempDir(), peersFile)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &fsnotify.Watcher{Events: make(chan fsnotify.Event)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.followPeers(w, path)
	}()
	for range 3 {
		w.Events <- fsnotify.Event{}
	}
	close(w.Events)
	<-done
	if got := log.String(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "known so far stay") {
		t.Errorf("log: %s", got)
	}
}

// A killed agent leaves a part of a file in the directory, which must not keep coracled from
// starting without layers from other nodes.
func TestPeersAreTurnedOff(t *testing.T) {
	n := &node{config: config.Config{State: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	dir := filepath.Join(n.config.State, peersDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{peersFile, ".new-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.startPeers(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}
