package image

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// blocks are the bytes that the file system has allocated for the store's blobs.
func (s *testStore) blocks(t *testing.T) (n int64) {
	t.Helper()
	files, err := os.ReadDir(s.blobs.Dir())
	must(t, err)
	for _, f := range files {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(s.blobs.Dir(), f.Name()), &st))
		n += st.Blocks * 512
	}
	return n
}

// Regression: blobs were counted in blocks of 4096 bytes, whatever those of the file system.
func TestUsageInBlocks(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHelperUsageInBlocks$", "-test.v")
	cmd.Env = append(os.Environ(), "HELPER_DISK="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestHelperUsageInBlocks")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestHelperUsageInBlocks is the process with mounts of its own that tries it on small file
// systems.
func TestHelperUsageInBlocks(t *testing.T) {
	dir := os.Getenv("HELPER_DISK")
	if dir == "" {
		return
	}
	r := newFake(t)
	r.image("app:1", append(threeLayers(), plainLayer(tarOf("f", strings.Repeat("x", 20_000)))), nil)
	for _, size := range []string{"1024", "2048", "4096"} {
		file, disk := filepath.Join(dir, "file"+size), filepath.Join(dir, "disk"+size)
		must(t, os.WriteFile(file, nil, 0o600))
		must(t, os.Truncate(file, 32<<20))
		must(t, os.Mkdir(disk, 0o755))
		run(t, "mkfs.ext4", "-q", "-b", size, file)
		run(t, "mount", "-o", "loop", file, disk)
		t.Cleanup(func() { run(t, "umount", disk) })
		s := &testStore{layers: newDirLayers(t, filepath.Join(disk, "layers"))}
		s.cfg = Config{Root: filepath.Join(disk, "images"), Layers: s.layers, KeepBlobs: true}
		s.cfg.Layer.MinFree = 1
		s.reopen(t)
		t.Cleanup(func() { must(t, s.Close()) })
		_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
		must(t, err)
		for _, when := range []string{"pulled", "opened again"} {
			if got, inodes, err := s.Usage(); got != s.blocks(t) || got == 0 || inodes != 6 || err != nil {
				t.Errorf("blocks of %s, %s: %d bytes, %d inodes, %v; want %d bytes", size, when, got, inodes, err, s.blocks(t))
			}
			s.reopen(t)
		}
	}
}
