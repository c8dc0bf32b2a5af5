package shim

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A caller of the Task API may give any file as a stream. Who had /dev/null open was killed with an
// exec that had it, too.
func TestStreamsAreFIFOs(t *testing.T) {
	dir := t.TempDir()
	fifo, log := filepath.Join(dir, "fifo"), filepath.Join(dir, "log")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, gone := (&execRecord{Stdin: os.DevNull, Stdout: fifo, Stderr: log}).streams()
	defer got.close()
	if len(gone) != 0 {
		t.Errorf("gone: %q", gone)
	}
	if len(got) != 1 || filepath.Base(nameOf(got[0].path())) != "fifo" || got[0].input {
		t.Errorf("streams %v", got)
	}
}

// The holder of a FIFO is found by its name when the FIFO has been removed with its directory, also
// if the name in the record leads through a symbolic link.
func TestStreamsThatAreGone(t *testing.T) {
	dir, link := filepath.Join(t.TempDir(), "dir"), filepath.Join(t.TempDir(), "link")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Symlink(dir, link))
	must(os.MkdirAll(filepath.Join(dir, "exec"), 0o700))
	path := filepath.Join(link, "exec", "out")
	must(unix.Mkfifo(path, 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(err)
	defer f.Close()
	must(os.RemoveAll(filepath.Join(dir, "exec")))
	got, gone := (&execRecord{Stdout: path}).streams()
	defer got.close()
	if len(got) != 0 || len(gone) != 1 || !holdsAny(t.Context(), os.Getpid(), gone) {
		t.Errorf("streams %v, gone %q", got, gone)
	}
}
