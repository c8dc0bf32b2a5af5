package image

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// badDisk is a small ext4 on a loop device that fails to read one file, as a disk does with a bad
// block: the end of the device's own file, where the data of that file is, is cut off.
type badDisk struct {
	t         *testing.T
	file, dir string
	device    *os.File
}

// What its file system takes at first, and with what is added for the data that gets lost. Both are
// of one block group, whose tables are at its beginning.
const (
	goodPart = 28 << 20
	diskSize = 32 << 20
)

// newBadDisk makes a disk that is whole.
func newBadDisk(t *testing.T, name string) *badDisk {
	d := &badDisk{t: t, file: name + ".file", dir: name}
	must(t, errors.Join(os.WriteFile(d.file, nil, 0o600), os.Truncate(d.file, diskSize), os.Mkdir(d.dir, 0o755)))
	run(t, "mkfs.ext4", "-q", "-b", "4096", "-m", "0", "-O", "^has_journal", d.file, fmt.Sprintf("%dk", goodPart>>10))
	run(t, "mount", "-o", "loop", d.file, d.dir)
	t.Cleanup(func() { run(t, "umount", d.dir) })
	out, err := exec.Command("findmnt", "-n", "-o", "SOURCE", d.dir).Output()
	must(t, err)
	// While it is open it stays attached, of the size that it has now.
	d.device, err = os.Open(strings.TrimSpace(string(out)))
	must(t, err)
	t.Cleanup(func() { must(t, d.device.Close()) })
	return d
}

// lose makes a file unreadable. Nothing of the disk may be open.
func (d *badDisk) lose(path string) {
	t := d.t
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	d.fill()
	// Now there is to be room in the part that gets lost, and nowhere else.
	run(t, "umount", d.dir)
	run(t, "e2fsck", "-f", "-y", d.device.Name())
	run(t, "resize2fs", d.device.Name())
	d.mount()
	moved, err := os.OpenFile(path+".moved", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	must(t, err)
	_, err = moved.Write(data)
	must(t, errors.Join(err, moved.Sync(), moved.Close(), os.Rename(moved.Name(), path), os.RemoveAll(filepath.Join(d.dir, "full"))))
	run(t, "umount", d.dir)
	must(t, os.Truncate(d.file, goodPart))
	d.mount()
	if _, err := os.ReadFile(path); !errors.Is(err, unix.EIO) {
		t.Fatalf("the premise: reading %s: %v", path, err)
	}
}

func (d *badDisk) mount() {
	d.t.Helper()
	run(d.t, "mount", d.device.Name(), d.dir)
}

// fill takes all blocks that are free: with one file, and with small ones what its own tables leave
// over.
func (d *badDisk) fill() {
	t := d.t
	t.Helper()
	full := filepath.Join(d.dir, "full")
	must(t, os.Mkdir(full, 0o755))
	// What ext4 keeps for its own tables.
	must(t, os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(d.device.Name()), "reserved_clusters"), []byte("0"), 0))
	var st unix.Statfs_t
	for i := 0; ; i++ {
		must(t, unix.Statfs(full, &st))
		if st.Bfree == 0 {
			return
		}
		f, err := os.Create(filepath.Join(full, fmt.Sprint(i)))
		must(t, err)
		for size := int64(st.Bfree) * 4096; size > 0; size /= 2 {
			if err = unix.Fallocate(int(f.Fd()), 0, 0, size); !errors.Is(err, unix.ENOSPC) {
				break
			}
		}
		must(t, errors.Join(err, f.Sync(), f.Close()))
	}
}

// What the disk of images cannot read any more is found, told and fetched again, as is what has
// rotted. A process with mounts of its own tries that.
func TestBadDisk(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHelperBadDisk$", "-test.v")
	cmd.Env = append(os.Environ(), "HELPER_DISK="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestHelperBadDisk")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestHelperBadDisk is that process.
func TestHelperBadDisk(t *testing.T) {
	dir := os.Getenv("HELPER_DISK")
	if dir == "" {
		return
	}
	eio := unix.EIO.Error()
	r := newFake(t)
	p := r.image("app:1", threeLayers(), nil)
	ref := r.ref("app:1")
	for name, tc := range map[string]struct {
		lost    func(s *testStore) string
		kind    string   // what verify calls it; "": a pull fixes it
		tells   []string // in the log
		fetched int      // blobs
	}{
		"blob":  {func(s *testStore) string { return s.blobs.Path(p.layers[0]) }, "blob", nil, 0},
		"layer": {func(s *testStore) string { return filepath.Join(s.layers.path(p.diffIDs[0]), "a/f") }, "layer", nil, 0},
		"blob of a lost layer": {func(s *testStore) string {
			must(t, os.RemoveAll(s.layers.path(p.diffIDs[0])))
			return s.blobs.Path(p.layers[0])
		}, "", []string{"layer is fetched again", eio}, 2},
		"manifest": {func(s *testStore) string { return s.blobs.Path(p.manifest) }, "", []string{"image dropped", eio}, 1},
		"config":   {func(s *testStore) string { return s.blobs.Path(p.config) }, "", []string{"image dropped", eio}, 1},
		"index":    {func(s *testStore) string { return s.blobs.IndexFile() }, "", []string{"image index is damaged", eio}, 1},
		// bbolt has words of its own
		"ledger": {func(s *testStore) string { return s.blobs.LedgerFile() }, "", []string{"image ledger set aside"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			disk := newBadDisk(t, filepath.Join(dir, name))
			var log bytes.Buffer
			s := &testStore{layers: newDirLayers(t, filepath.Join(disk.dir, "layers"))}
			s.cfg = Config{Root: filepath.Join(disk.dir, "images"), Layers: s.layers, KeepBlobs: true, Log: slog.New(slog.NewTextHandler(&log, nil))}
			s.cfg.Layer.MinFree = 1
			s.reopen(t)
			t.Cleanup(func() { must(t, s.Close()) })
			_, err := s.Pull(t.Context(), ref, PullOptions{})
			must(t, err)
			must(t, s.Close())
			disk.lose(tc.lost(s))
			s.Store = nil
			s.reopen(t)

			before := r.blobReads()
			if tc.kind == "" {
				_, err = s.Pull(t.Context(), ref, PullOptions{})
				must(t, err)
				for _, words := range tc.tells {
					if !strings.Contains(log.String(), words) {
						t.Errorf("the log does not tell %q: %s", words, log.String())
					}
				}
			} else {
				v, err := s.Verify(t.Context(), VerifyOptions{Repair: RefetchDamaged})
				if err != nil || len(v.Damaged) != 1 || v.Damaged[0].Kind != tc.kind || !errors.Is(v.Damaged[0].Cause, unix.EIO) ||
					len(v.Dropped) != 0 {
					t.Fatalf("%+v, %v", v, err)
				}
			}
			if n := r.blobReads() - before; n != tc.fetched {
				t.Errorf("%d blobs fetched, want %d", n, tc.fetched)
			}
			s.reopen(t)
			if v, err := s.Verify(t.Context(), VerifyOptions{}); err != nil || len(v.Damaged) != 0 || v.Layers != 3 {
				t.Errorf("afterwards: %+v, %v", v, err)
			}
			if img, err := s.Get(ref); err != nil || len(img.RepoTags) != 1 {
				t.Errorf("the image: %+v, %v", img, err)
			}
		})
	}
}
