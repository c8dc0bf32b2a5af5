package client

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// Pipes that cannot be made leave nothing, not even a part of them.
func TestMakeFIFOsFails(t *testing.T) {
	c, err := New(Config{Binary: "/bin/x", StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.makeFIFOs(Streams{Stdout: io.Discard}, false); err == nil {
		t.Error("made without a directory")
	}
	if err := os.Mkdir(c.execDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := c.makeFIFOs(Streams{Stdin: &bytes.Buffer{}, Stdout: io.Discard, Stderr: io.Discard}, true)
	if err != nil {
		t.Fatal(err)
	}
	if p.stderr != "" || len(p.outputs) != 1 {
		t.Error("a terminal has a stderr of its own")
	}
	if err := p.addOutput(p.stdout, io.Discard); err == nil {
		t.Error("made twice")
	}
	p.close()
	p.close()
	if left, _ := filepath.Glob(filepath.Join(c.execDir(), "*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
