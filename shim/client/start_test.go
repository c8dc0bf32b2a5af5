package client_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/shim/keeper"
)

// A start that fails halfway leaves no process behind.
func TestFailedStartLeavesNothing(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		// The shim cannot read its records, and dies again and again.
		"shim does not start": func(dir string) error {
			if err := os.MkdirAll(filepath.Join(dir, "node"), 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "node", "c"), nil, 0o600)
		},
		"shim cannot be made": func(dir string) error {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "node"), nil, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "shim")
			if err := spoil(dir); err != nil {
				t.Fatal(err)
			}
			r := &rig{TB: t, dir: dir}
			t.Cleanup(r.killLeft)
			c, err := client.New(client.Config{Binary: binary, StateDir: dir, Log: newLog(t)})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(r.ctx(), time.Second)
			defer cancel()
			if err := c.Start(ctx); err == nil {
				t.Error("it has started")
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if k, err := keeper.Dial(dir); !errors.Is(err, keeper.ErrGone) {
				t.Errorf("keeper: %v", err)
				if err == nil {
					k.Close()
				}
			}
		})
	}
}
