package unpack

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
)

// inflater puts a program in the place of igzip, which need not be installed here.
func inflater(t *testing.T, script string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), igzip)
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755))
	for dir := filepath.Dir(path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755)) // no one executes it
	}
	was := igzipPath
	igzipPath = func() string { return path }
	t.Cleanup(func() { igzipPath = was })
}

func large(t *testing.T) (plain, packed []byte) {
	t.Helper()
	plain = make([]byte, 4<<20)
	for i := range plain {
		plain[i] = byte(rand.Uint32())
	}
	return plain, gzipped(t, plain)
}

func TestInflateInAProcess(t *testing.T) {
	plain, packed := large(t)
	// Another process has its stderr when it ends. (A shell gives the first of a pipeline
	// /dev/null, which it may not open here.)
	const stillHeard = ": | sleep 3 >&2 & exec gzip -dc"
	for name, tc := range map[string]struct {
		script string
		data   []byte
		kind   error
		says   string
	}{
		"whole":         {"exec gzip -dc", packed, nil, ""},
		"two members":   {"exec gzip -dc", append(bytes.Clone(packed), gzipped(t, []byte("more"))...), nil, ""},
		"cut off":       {"exec gzip -dc", packed[:len(packed)/2], ErrInvalid, "unexpected end"},
		"damaged":       {"exec gzip -dc", append(bytes.Clone(packed[:1<<20]), bytes.Repeat([]byte("x"), 2<<20)...), ErrInvalid, "exit status"},
		"no program":    {"exec /does/not/exist", packed, errDied, "exit status 127"},
		"killed":        {"kill -9 $$", packed, errDied, "killed"},
		"still heard":   {stillHeard, packed, nil, ""},
		"a long lament": {"yes lament | head -c 100000 >&2; exit 1", packed, ErrInvalid, "lament"},
	} {
		t.Run(name, func(t *testing.T) {
			inflater(t, tc.script)
			z, err := DecompressSized(t.Context(), bytes.NewReader(tc.data), int64(len(tc.data)), Limits{})
			must(t, err)
			got, err := io.ReadAll(z)
			must(t, z.Close())
			if !errors.Is(err, tc.kind) || err != nil && (!strings.Contains(err.Error(), tc.says) || len(err.Error()) > 2000) {
				t.Errorf("error %v", err)
			}
			if tc.kind == nil && !bytes.HasPrefix(got, plain) {
				t.Error("other content")
			}
		})
	}
}

// The program that reads untrusted bytes has namespaces of its own and can read only the system's
// files.
func TestInflateConfined(t *testing.T) {
	packed := gzipped(t, []byte("x"))
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, []byte("read"), 0o644))
	inflater(t, "readlink /proc/self/ns/net; cat "+file+"; echo written >"+file+"; exit 0")
	must(t, os.Chmod(filepath.Dir(file), 0o777))
	must(t, os.Chmod(file, 0o666))
	z, err := DecompressSized(t.Context(), bytes.NewReader(packed), igzipWorth, Limits{})
	must(t, err)
	got, err := io.ReadAll(z)
	must(t, errors.Join(err, z.Close()))
	net, err := os.Readlink("/proc/self/ns/net")
	must(t, err)
	if !bytes.HasPrefix(got, []byte("net:[")) || bytes.Contains(got, []byte(net)) {
		t.Errorf("it is in %q, and this in %q", got, net)
	}
	data, err := os.ReadFile(file)
	must(t, err)
	if hasLandlock() && (bytes.Contains(got, []byte("read")) || string(data) != "read") {
		t.Errorf("it read %q and wrote %q", got, data)
	}
}

func hasLandlock() bool {
	_, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return errno == 0
}

// One that does not run where it is confined is none.
func TestInflates(t *testing.T) {
	for script, want := range map[string]bool{"exec gzip -dc": true, "exec /does/not/exist": false, "cat; exit 1": false, "exec cat": false} {
		inflater(t, script)
		if got := inflates(igzipPath()); got != want {
			t.Errorf("%s: %v", script, got)
		}
	}
	if path, err := exec.LookPath(igzip); err == nil && !inflates(path) { // the real one, where it is
		t.Errorf("%s does not", path)
	}
}

func TestInflateIsStopped(t *testing.T) {
	_, packed := large(t)
	inflater(t, "cat >&2; exec sleep 1000")
	z, err := DecompressSized(t.Context(), bytes.NewReader(packed), int64(len(packed)), Limits{})
	must(t, err)
	must(t, z.Close()) // kills it
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	z, err = DecompressSized(ctx, bytes.NewReader(packed), int64(len(packed)), Limits{})
	must(t, err)
	cancel() // while it runs
	if _, err := io.ReadAll(z); err == nil {
		t.Error("no error after the context's end")
	}
	must(t, z.Close())
}

func TestInflateBrokenStream(t *testing.T) {
	_, packed := large(t)
	inflater(t, "exec gzip -dc")
	broken := errors.New("network")
	for name, n := range map[string]int{"in the middle": 3 << 20, "behind a whole member": len(packed)} {
		r := io.MultiReader(bytes.NewReader(packed[:n]), iotest.ErrReader(broken))
		z, err := DecompressSized(t.Context(), r, int64(len(packed)), Limits{})
		must(t, err)
		if _, err := io.ReadAll(z); !errors.Is(err, broken) || errors.Is(err, ErrInvalid) {
			t.Errorf("%s: error %v", name, err)
		}
		must(t, z.Close())
	}
}

// Regression: the process was to die with the thread that had started it, and threads end:
// each root with mapped ids is mounted on one of its own.
func TestInflateOutlivesItsThread(t *testing.T) {
	plain, packed := large(t)
	inflater(t, "exec gzip -dc")
	started := make(chan io.ReadCloser)
	go func() {
		runtime.LockOSThread() // forever: the thread ends with this goroutine
		z, err := DecompressSized(t.Context(), bytes.NewReader(packed), int64(len(packed)), Limits{})
		if err != nil {
			t.Error(err)
		}
		started <- z
	}()
	z := <-started
	got, err := io.ReadAll(z)
	if must(t, z.Close()); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestInflateWithoutTheProcess(t *testing.T) {
	plain, packed := large(t)
	inflater(t, "")
	must(t, os.Remove(igzipPath()))
	z, err := DecompressSized(t.Context(), bytes.NewReader(packed), int64(len(packed)), Limits{})
	must(t, err)
	got, err := io.ReadAll(z)
	if must(t, z.Close()); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
