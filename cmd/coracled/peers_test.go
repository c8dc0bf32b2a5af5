package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/coracle-project/coracle/cmd/coracled/config"
)

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
