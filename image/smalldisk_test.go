package image

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The disk of images is full in the middle of a layer, or cannot be written to at all. A
// process with mounts of its own tries that on a small ext4 in a file.
func TestSmallDisk(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHelperSmallDisk$", "-test.v")
	cmd.Env = append(os.Environ(), "HELPER_DISK="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestHelperSmallDisk")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestHelperSmallDisk is that process.
func TestHelperSmallDisk(t *testing.T) {
	dir := os.Getenv("HELPER_DISK")
	if dir == "" {
		return
	}
	file, disk := filepath.Join(dir, "file"), filepath.Join(dir, "disk")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Truncate(file, 32<<20))
	must(t, os.Mkdir(disk, 0o755))
	run(t, "mkfs.ext4", "-q", "-m", "0", file)
	run(t, "mount", "-o", "loop", file, disk)
	t.Cleanup(func() { run(t, "umount", disk) })

	block := make([]byte, 16<<10) // compresses with what came before it, and is no zeros
	_, err := rand.Read(block)
	must(t, err)
	r := newFake(t)
	r.image("small:1", []testLayer{gzipLayer(tarOf("f", "1"))}, nil)
	r.image("large:1", []testLayer{gzipLayer(tarOf("g", "1")), gzipLayer(tarOf("first", "1", "huge", string(bytes.Repeat(block, 4000))))}, nil)
	r.image("many:1", []testLayer{gzipLayer(tarOf(manyNames(20_000)...))}, nil)
	s := &testStore{layers: newDirLayers(t, filepath.Join(disk, "layers"))}
	s.cfg = Config{Root: filepath.Join(disk, "images"), Layers: s.layers}
	s.cfg.Layer.MinFree = 1
	s.reopen(t)
	t.Cleanup(func() { must(t, s.Close()) })

	for _, ref := range []string{"large:1", "many:1", "large:1"} {
		_, err := s.Pull(t.Context(), r.ref(ref), PullOptions{})
		if !errors.Is(err, unix.ENOSPC) || errors.Is(err, ErrInvalidImage) || s.left(t) != nothingLeft {
			t.Errorf("%s: %v, left %s", ref, err, s.left(t))
		}
	}
	_, err = s.Pull(t.Context(), r.ref("small:1"), PullOptions{})
	must(t, err)

	must(t, s.Close())
	run(t, "mount", "-o", "remount,ro", disk)
	if _, err := Open(s.cfg); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), disk) {
		t.Errorf("open on a read-only disk: %v", err)
	}
	run(t, "mount", "-o", "remount,rw", disk)
	s.Store = nil
	s.reopen(t)
	if _, err := s.Get(r.ref("small:1")); err != nil {
		t.Errorf("what was there: %v", err)
	}
}

// manyNames are more files than a small ext4 has inodes.
func manyNames(n int) []string {
	names := make([]string, 0, 2*n)
	for i := range n {
		names = append(names, "d/"+strings.Repeat("n", 5)+string(rune('a'+i%26))+strings.Repeat("x", i/26%200)+string(rune('a'+i/5200)), "")
	}
	return names
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
