package containerlog

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A paused pump holds its container's output back. Neither the end of the container nor the next
// shim waits for the pause. Nothing is lost, and nothing is logged twice.
func TestPauseLosesNothing(t *testing.T) {
	for name, end := range map[string]func(r *pumpRig){
		"the container ends": func(r *pumpRig) { r.p.Drain() },
		"the shim is killed": func(r *pumpRig) {
			r.p.Stop()
			r.p.log.Close()
			r.begin()
			r.p.more = true
			r.p.carry(drainLimit)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newPumpRig(t)
			const lines = 30_000 // more than one write to the log, less than the FIFO holds
			wrote := make(chan struct{})
			r.p.busy = sync.OnceFunc(func() { // after the first turn
				r.p.rate.until = time.Now().Add(time.Hour)
				close(wrote)
			})
			if _, err := r.fifo.WriteString(strings.Repeat("\n", lines)); err != nil {
				t.Fatal(err)
			}
			r.p.Start(nil, nil)
			<-wrote
			if got := len(r.lines("stdout")); got == 0 || got == lines {
				t.Fatalf("%d lines before the end", got)
			}
			end(r)
			if got := len(r.lines("stdout")); got != lines {
				t.Errorf("%d lines, want %d", got, lines)
			}
		})
	}
}

// After init has ended, other processes may keep writing as fast as they can: the drain does not
// wait for them.
func TestDrainEnds(t *testing.T) {
	r := newPumpRig(t)
	var writer sync.WaitGroup
	writer.Go(func() {
		text := bytes.Repeat([]byte("line\n"), 1000)
		for {
			if _, err := r.fifo.Write(text); err != nil {
				return
			}
		}
	})
	for range 3 {
		before := len(r.text())
		r.p.Drain()
		if n := len(r.text()) - before; n > 3*chunkSize { // the FIFO's size, a terminal's, and the last splice
			t.Errorf("%d bytes were drained", n)
		}
	}
	r.fifo.Close()
	writer.Wait()
}

// hang makes the log hang like one on a file system that does not answer: it is a pipe that nothing
// reads until release is called.
func (r *pumpRig) hang() (release func()) {
	r.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		r.Fatal(err)
	}
	_ = in.Fd() // blocking, as files are
	full := make([]byte, 64<<10)
	if _, err := in.Write(full); err != nil {
		r.Fatal(err)
	}
	r.p.log.f.Close()
	r.p.log.f = in
	return func() { go io.Copy(io.Discard, out) }
}

// A log that hangs, because its file system does, delays neither the pumps of other containers nor
// requests for its file.
func TestHungLog(t *testing.T) {
	hung, other := newPumpRig(t), newPumpRig(t)
	other.p.share = hung.p.share
	release := hung.hang()
	if _, err := hung.fifo.WriteString("into the void\n"); err != nil {
		t.Fatal(err)
	}
	hung.p.Start(nil, nil)
	for end := time.Now().Add(time.Minute); hung.p.log.mu.TryLock(); { // until the write has started
		hung.p.log.mu.Unlock()
		if time.Now().After(end) {
			t.Fatal("nothing is written")
		}
		runtime.Gosched()
	}
	logged := make(chan struct{})
	other.p.busy = sync.OnceFunc(func() { close(logged) })
	if _, err := other.fifo.WriteString("line\n"); err != nil {
		t.Fatal(err)
	}
	other.p.Start(nil, nil)
	select {
	case <-logged:
	case <-time.After(time.Minute):
		t.Fatal("another container's pump hangs")
	}
	if got := other.text(); got != "line\n" {
		t.Errorf("log %q", got)
	}
	if hung.p.log.File() == nil { // the keeper gets the file
		t.Error("no file")
	}
	release()
}

// The state directory is full: a process with its own mounts tests that on a small tmpfs.
func TestFullStateDirectory(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHelperFullStateDirectory$", "-test.v")
	cmd.Env = append(os.Environ(), "HELPER_DIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestHelperFullStateDirectory")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestHelperFullStateDirectory is that process.
func TestHelperFullStateDirectory(t *testing.T) {
	dir := os.Getenv("HELPER_DIR")
	if dir == "" {
		return
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	r := newPumpRig(t)
	st, err := openStage(filepath.Join(dir, "stage"))
	if err != nil {
		t.Fatal(err)
	}
	r.p.stage.close()
	r.p.stage = st
	fill := func() {
		f, err := os.Create(filepath.Join(dir, "filler"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, 1<<20)); err == nil {
			t.Fatal("the file system is not full")
		}
	}
	want := strings.Join(numbers(0, 2000), "")
	// Full before the first byte; full with an unfinished line in the stage; with space again.
	fill()
	r.put(want)
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	r.put("unfin")
	fill()
	r.put("ished\n" + want)
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	r.put(want)
	if got := r.text(); got != want+"unfinished\n"+want+want {
		t.Errorf("log has %d bytes", len(got))
	}
	// With nothing to read, the pump waits: a step moves nothing and does not fail.
	fill()
	if n, ended := r.p.step(new(pumpBuffers)); n != 0 || ended {
		t.Errorf("%d bytes, ended: %t", n, ended)
	}
}

// A log without a limit is rotated when it is very large, and one such file is kept. The kubelet's
// files stay.
func TestLogWithoutLimit(t *testing.T) {
	r := newPumpRig(t)
	log := r.p.log
	log.most = 1 << 20
	r.p.rotate = func(n int) error { return log.rotate(n, func() {}) }
	kubelets := log.path + ".20200101-000000"
	if err := os.WriteFile(kubelets, []byte("2020-01-01T00:00:00Z stdout F old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const end = 80_000
	all := numbers(0, end)
	for part := range slices.Chunk(all, 2000) {
		r.put(strings.Join(part, ""))
		if names, sum := r.files(); len(names) > 3 || sum > 2*log.most+100 {
			t.Fatalf("%q have %d bytes", names, sum)
		}
	}
	names, _ := r.files()
	if len(names) != 3 || names[0] != kubelets {
		t.Fatalf("files %q", names)
	}
	if err := os.Remove(kubelets); err != nil {
		t.Fatal(err)
	}
	if got := r.lines("stdout"); len(got) < 15_000 || !slices.Equal(got, all[end-len(got):]) {
		t.Errorf("%d lines, not the last ones", len(got))
	}
	// If the kubelet renames a small file, it will say when to reopen it. A file of full size was
	// renamed by a shim that was killed.
	if err := os.Rename(log.path, kubelets); err != nil {
		t.Fatal(err)
	}
	if err := log.f.Truncate(100); err != nil {
		t.Fatal(err)
	}
	if log.cutShort() {
		t.Error("a log that the kubelet has renamed is taken for one of ours")
	}
	if err := log.f.Truncate(log.most - 100); err != nil {
		t.Fatal(err)
	}
	if !log.cutShort() {
		t.Error("renamed at full size, and not found to be cut short")
	}
}

// BenchmarkAppendLog measures one record without any system call.
func BenchmarkAppendLog(b *testing.B) {
	for name, line := range map[string]string{"empty": "\n", "100 bytes": strings.Repeat("x", 99) + "\n"} {
		b.Run(name, func(b *testing.B) {
			data := bytes.Repeat([]byte(line), chunkSize/len(line))
			var dst []byte
			records := 0
			for b.Loop() {
				for rest := data; len(rest) > 0; {
					var used int
					dst, used = appendLog(dst[:0], rest, time.Now(), "stdout", keepRest)
					rest = rest[used:]
				}
				records += len(data) / len(line)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(records), "ns/record")
		})
	}
}

// BenchmarkPump measures one record from the pipe to a log on disk.
func BenchmarkPump(b *testing.B) {
	for name, line := range map[string]string{"empty": "\n", "100 bytes": strings.Repeat("x", 99) + "\n"} {
		b.Run(name, func(b *testing.B) {
			r := newPumpRig(b)
			text := strings.Repeat(line, 32<<10/len(line))
			records := 0
			for b.Loop() {
				if _, err := r.fifo.WriteString(text); err != nil {
					b.Fatal(err)
				}
				r.p.carry(drainLimit)
				if records += len(text) / len(line); records > 1<<20 && records%(1<<20) < len(text)/len(line) {
					if err := os.Truncate(r.p.log.path, 0); err != nil { // the disk is not measured
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(records), "ns/record")
		})
	}
}

// BenchmarkPumpThroughput measures the throughput of one container's output on an idle shim, within
// both limits.
func BenchmarkPumpThroughput(b *testing.B) {
	for name, line := range map[string]string{
		"empty": "\n", "100 bytes": strings.Repeat("x", 99) + "\n",
		"long": strings.Repeat("x", 16<<10-1) + "\n",
	} {
		b.Run(name, func(b *testing.B) {
			r := newPumpRig(b)
			r.p.Start(nil, nil)
			text := strings.Repeat(line, 32<<10/len(line))
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := r.fifo.WriteString(text); err != nil {
					b.Fatal(err)
				}
			}
			r.p.Drain()
		})
	}
}
