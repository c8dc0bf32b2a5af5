package fsgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/internal/rmtree"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/kubelet/internal/volumetest"
)

// What has the group at its root has it everywhere: a walk that was cut off is done again.
func TestAGroupThatWasNotGivenToAll(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/sub", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir+"/sub", "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir+"/sub", unix.MNT_DETACH) })
	pod := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{
		FSGroup: ptr.To[int64](4242), FSGroupChangePolicy: ptr.To(v1.FSGroupChangeOnRootMismatch),
	}}}
	var logged testkit.Log
	give := func(ctx context.Context) error { return Give(ctx, dir, pod, logged.Logger()) }
	if err := give(t.Context()); err != nil {
		t.Fatal("a file system that lets no one give files:", err)
	}
	if logged.Count("files=1") != 1 || logged.Count("read-only file system") != 1 {
		t.Errorf("logged: %s", &logged)
	}
	if gid, _ := volumetest.GroupOf(t, dir); gid == 4242 {
		t.Fatal("the root has the group, but not all below it")
	}
	if err := unix.Unmount(dir+"/sub", 0); err != nil {
		t.Fatal(err)
	}
	volumetest.Write(t, dir+"/sub/file", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := give(ctx); !errors.Is(err, context.Canceled) {
		t.Error("the walk does not end with its context:", err)
	}
	if err := give(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, dir + "/sub", dir + "/sub/file"} {
		if gid, _ := volumetest.GroupOf(t, path); gid != 4242 {
			t.Errorf("%s belongs to group %d", path, gid)
		}
	}
}

// Files that another pod removes while the group is given are no errors.
func TestFilesThatGoWhileTheGroupIsGiven(t *testing.T) {
	meanwhile(t, func(dir string) {
		if err := os.Remove(dir + "/last"); err != nil {
			t.Fatal(err)
		}
	})
}

// Regression: the kubelet opened what another pod had put in the place of a directory of the
// volume: a FIFO, where it waited for ever, or a device.
func TestAttackFIFOInPlaceOfDirectory(t *testing.T) {
	dir := meanwhile(t, func(dir string) {
		if err := errors.Join(os.Remove(dir+"/last"), unix.Mkfifo(dir+"/last", 0o600)); err != nil {
			t.Fatal(err)
		}
	})
	// A walk that goes by the listing, as fs.WalkDir does, waits for a writer.
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	read := make(chan error, 1)
	go func() {
		_, err := fs.ReadDir(root.FS(), "last")
		read <- err
	}()
	writer, err := os.OpenFile(dir+"/last", os.O_WRONLY, 0) // returns when there is a reader
	if err != nil {
		t.Fatal(err)
	}
	writer.Close()
	if err := <-read; !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("the list of what is no directory: %v", err)
	}
}

// meanwhile has change called when the group of a volume is being given, before its directory
// "last" is. It returns the volume.
func meanwhile(t *testing.T, change func(dir string)) (dir string) {
	t.Helper()
	const files = 3000
	tried := func() bool {
		dir = t.TempDir()
		for i := range files {
			volumetest.Write(t, fmt.Sprintf("%s/%04d", dir, i), "")
		}
		if err := os.Mkdir(dir+"/last", 0o700); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		given := make(chan error, 1)
		go func() { given <- Set(t.Context(), root, ptr.To[int64](4242), ReadWrite) }()
		first := func() bool {
			for i := range files {
				if gid, _ := volumetest.GroupOf(t, fmt.Sprintf("%s/%04d", dir, i)); gid == 4242 {
					return true
				}
			}
			return false
		}
		for late := time.Now().Add(time.Minute); !first(); {
			if time.Now().After(late) {
				t.Fatal("nothing is given")
			}
		}
		gid, _ := volumetest.GroupOf(t, dir+"/last")
		change(dir)
		select {
		case err := <-given:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the walk does not end")
		}
		if gid, _ := volumetest.GroupOf(t, dir); gid != 4242 {
			t.Errorf("the volume belongs to group %d", gid)
		}
		return gid != 4242
	}
	for late := time.Now().Add(time.Minute); !tried(); { // the walk may have been faster
		if time.Now().After(late) {
			t.Fatal("the walk is always faster: nothing is tested")
		}
	}
	return dir
}

// Regression: the walk kept the paths of all levels of a tree, so directories that a pod had nested
// thousands deep took gigabytes of the process that also serves the API.
func TestAttackDeepVolume(t *testing.T) {
	const depth = 3000
	name := strings.Repeat("n", 255)
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := unix.Mkdirat(fd, name, 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	unix.Close(fd)
	t.Cleanup(func() {
		if err := rmtree.Path(context.Background(), dir+"/"+name); err != nil {
			t.Error(err)
		}
	})
	allocated := func(of func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		of()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	took := allocated(func() { err = Set(t.Context(), root, ptr.To[int64](4242), ReadWrite) })
	var left *Left
	if !errors.As(err, &left) || left.Count != 1 || !strings.Contains(err.Error(), "directories deep") || len(err.Error()) > 2000 {
		t.Errorf("a tree of %d levels: %v", depth, err)
	}
	if took > 8<<20 {
		t.Errorf("the walk of %d levels took %d bytes", depth, took)
	}
	if gid, _ := volumetest.GroupOf(t, dir+"/"+name+"/"+name); gid != 4242 {
		t.Errorf("the second level belongs to group %d", gid)
	}
	// Another walk of the tree, cut off early, takes more.
	levels := 0
	unprotected := allocated(func() {
		_ = fs.WalkDir(root.FS(), ".", func(string, fs.DirEntry, error) error {
			if levels++; levels == 300 {
				return fs.SkipAll
			}
			return nil
		})
	})
	if unprotected < took || unprotected < 20<<20 {
		t.Errorf("a walk by paths takes %d bytes for 300 levels, Set %d", unprotected, took)
	}
}

// Files of which the group cannot be changed do not keep a pod from starting. What belongs to the
// group already is not touched, and programs keep their set-user-ID bit.
func TestFilesThatCannotBeGiven(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	for _, name := range []string{"immutable", "program", "theirs"} {
		volumetest.Write(t, dir+"/"+name, "x")
	}
	theirs := func() unix.Timespec {
		var s unix.Stat_t
		if err := unix.Lstat(dir+"/theirs", &s); err != nil {
			t.Fatal(err)
		}
		return s.Ctim
	}
	immutable := func(flags int) {
		f, err := os.Open(dir + "/immutable")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(unix.Chmod(dir+"/program", 0o4755), os.Chown(dir+"/theirs", -1, 4242), unix.Chmod(dir+"/theirs", 0o660))
	if err != nil {
		t.Fatal(err)
	}
	immutable(0x10) // FS_IMMUTABLE_FL
	before := theirs()
	var logged testkit.Log
	pod := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{FSGroup: ptr.To[int64](4242)}}}
	if err := Give(t.Context(), dir, pod, logged.Logger()); err != nil {
		t.Error(err)
	}
	if logged.Count("/immutable: operation not permitted") != 1 {
		t.Errorf("logged: %s", &logged)
	}
	if gid, mode := volumetest.GroupOf(t, dir+"/program"); gid != 4242 || mode != fs.ModeSetuid|0o775 {
		t.Errorf("the program has group %d and mode %v", gid, mode)
	}
	if gid, _ := volumetest.GroupOf(t, dir); gid == 4242 {
		t.Error("the root says that all is given")
	}
	if theirs() != before {
		t.Error("a file that has the group was changed")
	}
	immutable(0)
	if err := Give(t.Context(), dir, pod, logged.Logger()); err != nil {
		t.Error(err)
	}
	if gid, mode := volumetest.GroupOf(t, dir); gid != 4242 || mode&fs.ModeSetgid == 0 {
		t.Errorf("the root has group %d and mode %v", gid, mode)
	}
}
