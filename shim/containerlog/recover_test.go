package containerlog

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/internal/rawfd"
)

// A second death must not find the header of the stage as it was before the first one's
// lines: those are in the log.
func TestRecoverTwice(t *testing.T) {
	r := newPumpRig(t)
	r.fifo.WriteString("first\nunfin")
	r.p.carry(drainLimit)
	for _, more := range []string{"is", "hed\n"} {
		r.p.Stop()
		r.p.log.Close()
		r.begin()
		r.fifo.WriteString(more)
		r.p.carry(drainLimit)
	}
	if got, want := r.text(), "first\nunfinished\n"; got != want {
		t.Errorf("log %q, want %q", got, want)
	}
}

// When a stream lets the other one write to the log, its own mark must be withdrawn: a
// rollback would take the other's lines, too.
func TestMarkEndsWithTheLock(t *testing.T) {
	r := newPumpRig(t)
	state := func() uint64 {
		var h [stageHeader]byte
		if _, err := r.p.stage.f.ReadAt(h[:], 0); err != nil {
			t.Fatal(err)
		}
		return binary.NativeEndian.Uint64(h[8:])
	}
	r.fifo.WriteString("line\n")
	rawfd.With(r.p.pipe, func(fd int) { r.p.stage.fill(fd) })
	b := new(pumpBuffers)
	data, err := r.p.stage.bytes(b.chunk[:])
	if err != nil {
		t.Fatal(err)
	}
	locked := false
	r.p.append(b, data, keepRest,
		func(m logMark) error { return r.p.stage.mark(stageWriting, r.p.stage.start, m) },
		func(n int) {
			if locked = !r.p.log.mu.TryLock(); !locked {
				r.p.log.mu.Unlock()
			}
			if err := r.p.stage.done(n); err != nil {
				t.Error(err)
			}
		})
	if !locked || state() != uint64(stageIdle) {
		t.Errorf("locked %t, state %d", locked, state())
	}
}

// A log on a file system that is full: the container goes on, and what is in the log is
// whole records.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := newPumpRig(t)
	log, err := Open(Place{dir, "0.log"}, Limit{})
	if err != nil {
		t.Fatal(err)
	}
	r.p.log.Close()
	r.p.log = log
	line := strings.Repeat("x", 99) + "\n"
	for range 20 {
		r.fifo.WriteString(strings.Repeat(line, 400))
		r.p.carry(drainLimit)
	}
	b, err := os.ReadFile(log.path)
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		if f := strings.SplitN(l, " ", 4); len(f) != 4 || f[3] != line {
			t.Fatalf("record %q", l)
		}
	}
	if len(b) == 0 || r.p.lost == 0 {
		t.Errorf("%d bytes written, %d lost", len(b), r.p.lost)
	}
}
