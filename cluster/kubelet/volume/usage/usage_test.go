package usage

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/internal/btrfstest"
	"github.com/coracle-project/coracle/cluster/internal/rmtree"
	"github.com/coracle-project/coracle/cluster/kubelet/internal/volumetest"
)

func TestMain(m *testing.M) { volumetest.InMountNamespace(m) }

func used(t *testing.T, dir string) (bytes, inodes uint64) {
	t.Helper()
	stats, err := Of(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return *stats.UsedBytes, *stats.InodesUsed
}

// Regression: files below 128 directories were not counted, so a pod could take the whole disk
// without having reached its limit.
func TestAttackDeepFiles(t *testing.T) {
	const depth, files = 3000, 20
	dir, name := t.TempDir(), strings.Repeat("n", 250)
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rmtree.Path(context.WithoutCancel(t.Context()), dir+"/"+name); err != nil {
			t.Error(err)
		}
	})
	for level := range depth {
		if err := unix.Mkdirat(fd, name, 0o700); err != nil {
			t.Fatal(err)
		}
		if level%500 == 499 { // before and behind the directory, in whatever order they are read
			for i := range files {
				if err := unix.Mkdirat(fd, string(rune('a'+i)), 0o700); err != nil {
					t.Fatal(err)
				}
			}
		}
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	for _, name := range []string{"large", "again"} {
		file, err := unix.Openat(fd, name, unix.O_WRONLY|unix.O_CREAT, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(file, bytes.Repeat([]byte("x"), 1<<20)); err != nil {
			t.Fatal(err)
		}
		unix.Close(file)
	}
	unix.Close(fd)
	bytes, inodes := used(t, dir)
	if want := uint64(1 + depth + depth/500*files + 2); bytes < 2<<20 || inodes != want {
		t.Errorf("%d bytes in %d files, want 2 MiB in %d", bytes, inodes, want)
	}
	// A walk by paths does not come so far.
	err = filepath.WalkDir(dir, func(_ string, _ fs.DirEntry, err error) error { return err })
	if !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("a walk by paths: %v", err)
	}
}

// Regression: a subvolume of btrfs, which any user may make, was not counted.
func TestAttackSubvolume(t *testing.T) {
	if !btrfstest.CanMount(t) {
		t.Skip("the kernel has no btrfs, or no loop devices")
	}
	root := btrfstest.Mount(t)
	dir, mounted := root+"/volume", root+"/volume/mounted"
	for _, d := range []string{dir, mounted} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("tmpfs", mounted, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	// struct btrfs_ioctl_vol_args of BTRFS_IOC_SUBVOL_CREATE
	var args struct {
		_    int64
		name [4088]byte
	}
	copy(args.name[:], "subvolume")
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), 0x5000940e, uintptr(unsafe.Pointer(&args))); errno != 0 {
		t.Fatal(errno)
	}
	large := bytes.Repeat([]byte("x"), 1<<20)
	for _, file := range []string{dir + "/subvolume/large", mounted + "/large"} {
		if err := os.WriteFile(file, large, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var inside, outside unix.Stat_t
	if err := errors.Join(unix.Lstat(dir, &outside), unix.Lstat(dir+"/subvolume", &inside)); err != nil {
		t.Fatal(err)
	}
	if inside.Dev == outside.Dev {
		t.Error("nothing is tested: a walk of one device sees the subvolume")
	}
	unix.Sync() // btrfs gives blocks to files late
	bytes, inodes := used(t, dir)
	if bytes < 1<<20 || bytes > 3<<19 || inodes != 3 {
		t.Errorf("%d bytes in %d files, want 1 MiB in 3", bytes, inodes)
	}
}
