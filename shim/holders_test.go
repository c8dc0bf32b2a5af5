package shim

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A caller of the Task API may give any file as a stream. Who had /dev/null open was killed with an exec that had it, too.
func TestStreamsAreFIFOs(t *testing.T) {
	dir := t.TempDir()
	fifo, log := filepath.Join(dir, "fifo"), filepath.Join(dir, "log")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := (&execRecord{Stdin: os.DevNull, Stdout: fifo, Stderr: log}).streams()
	defer got.close()
	if len(got) != 1 || filepath.Base(nameOf(got[0].path())) != "fifo" || got[0].input {
		t.Errorf("streams %v", got)
	}
}
