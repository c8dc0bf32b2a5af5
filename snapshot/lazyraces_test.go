package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// Who shows a layer may mount it when the pull has been cancelled and its directory dropped.
// Whichever comes first, no mount is left.
func TestLazyLayerIsMountedTooLate(t *testing.T) {
	root := t.TempDir()
	s := started(t, root)
	d := digest.FromString("x")
	for range 100 {
		dir, err := s.BeginLazy(d)
		must(t, err)
		mounted := make(chan error)
		go func() { mounted <- unix.Mount("tmpfs", filepath.Join(dir, "fs"), "tmpfs", 0, "size=64k") }()
		must(t, s.AbortLazy(d))
		if err := <-mounted; err != nil && !errors.Is(err, unix.ENOENT) {
			t.Fatal(err)
		}
		must(t, s.AbortLazy(d)) // as another pull does when it starts
		must(t, s.Flush(t.Context()))
		nothingIn(t, s)
	}
}

// A mount that was in the directory when that was discarded is taken away, and not looked into.
func TestMountInStaging(t *testing.T) {
	s := started(t, t.TempDir())
	d := digest.FromString("x")
	dir, err := s.BeginLazy(d)
	must(t, err)
	at := filepath.Join(dir, "fs")
	for range 2 {
		must(t, unix.Mount("tmpfs", at, "tmpfs", 0, "size=64k"))
	}
	f, err := os.Create(filepath.Join(at, "file"))
	must(t, err)
	defer f.Close()
	must(t, s.trash.Discard(dir))
	must(t, s.Flush(t.Context()))
	nothingIn(t, s)
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	if st.Nlink != 1 {
		t.Error("a file of the mount was deleted")
	}
}

// nothingIn says what a store has in staging, of lazy layers, or mounted.
func nothingIn(t *testing.T, s *Store) {
	t.Helper()
	for _, dir := range []string{s.stagingDir(), lazyTop(s)} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Fatalf("%s: %v, %v", dir, left, err)
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(s.root))
	must(t, err)
	for _, m := range mounts {
		if strings.HasPrefix(m.Mountpoint, s.stagingDir()) || strings.HasPrefix(m.Mountpoint, lazyTop(s)) {
			t.Fatalf("mounted: %s", m.Mountpoint)
		}
	}
}

// silence mounts a FUSE file system whose process greets the kernel, and is stopped before its
// first answer: who asks for anything waits, until end. asked is closed when someone does.
func silence(t *testing.T, at string) (asked chan struct{}, end func()) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, unix.Mount("silence", at, "fuse.silence", unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)))
	asked, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		request := make([]byte, 64<<10)
		if _, err := unix.Read(fd, request); err != nil {
			t.Errorf("read the greeting: %v", err)
			return
		}
		if _, err := unix.Write(fd, greeting(request)); err != nil {
			t.Errorf("greet: %v", err)
			return
		}
		if _, err := unix.Read(fd, request); err == nil {
			close(asked)
		}
	}()
	end = sync.OnceFunc(func() {
		_ = unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // ends the reading if no one has asked
		<-gone
		_ = unix.Close(fd) // gives all that wait an error
	})
	t.Cleanup(end)
	return asked, end
}

// greeting answers FUSE_INIT: struct fuse_out_header and fuse_init_out of linux/fuse.h.
func greeting(request []byte) []byte {
	answer := make([]byte, 16+64)
	binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
	copy(answer[8:16], request[8:16]) // unique
	binary.NativeEndian.PutUint32(answer[16:], 7)
	binary.NativeEndian.PutUint32(answer[20:], 31)
	binary.NativeEndian.PutUint32(answer[16+20:], 4096) // max_write
	return answer
}

// Who shows a layer may be stopped in the middle of a root of it. No one else waits, not even who
// takes the layer out of use.
func TestStoppedLazyLayer(t *testing.T) {
	s := started(t, t.TempDir())
	d := digest.FromString("x")
	dir, err := s.BeginLazy(d)
	must(t, err)
	asked, end := silence(t, filepath.Join(dir, "fs"))
	watchdog := time.AfterFunc(2*time.Minute, end) // rather than the whole test's time
	defer watchdog.Stop()
	must(t, s.CommitLazy(d, digest.FromString("blob"), digest.FromString("table")))
	hanging := make(chan error, 1)
	target := t.TempDir()
	go func() {
		_, err := s.Prepare(t.Context(), "hanging", PrepareOptions{Layers: []digest.Digest{d}, Target: filepath.Join(target, "root")})
		hanging <- err
	}()
	select {
	case <-asked:
	case err := <-hanging:
		t.Fatalf("the root of the stopped layer: %v", err)
	}

	commitLayer(t, s, "x", func(dir string) { write(t, filepath.Join(dir, "file"), "whole") })
	must(t, s.EndLazy(d))
	other := commitLayer(t, s, "other", func(string) {})
	next, err := s.Prepare(t.Context(), "next", PrepareOptions{Layers: []digest.Digest{other, d}, Target: filepath.Join(t.TempDir(), "root")})
	must(t, err)
	if got := read(t, filepath.Join(next.Target, "file")); got != "whole" {
		t.Errorf("the next root says %q", got)
	}
	must(t, s.Remove(t.Context(), "next"))
	must(t, s.RemoveLayer(t.Context(), other))
	must(t, s.DropLazy())
	select {
	case err := <-hanging:
		t.Fatalf("the root of the stopped layer: %v", err)
	default:
	}
	end()
	if err := <-hanging; err == nil {
		t.Error("a root was made of a layer that no process shows")
	}
	must(t, s.Flush(t.Context()))
	nothingIn(t, s)
}

// What a driver was told of a layer's directory holds until it is done: a container's changes can
// be read while its layer is made an ordinary one.
func TestLazyLayerWhileReached(t *testing.T) {
	s := started(t, t.TempDir())
	d := showLayer(t, s, "x", "lazy")
	snap, err := s.Prepare(t.Context(), "old", PrepareOptions{Layers: []digest.Digest{d}, Target: filepath.Join(t.TempDir(), "root")})
	must(t, err)
	first, doneFirst := s.rootfs(snap)
	_, doneSecond := s.rootfs(snap)
	commitLayer(t, s, "x", func(dir string) { write(t, filepath.Join(dir, "file"), "whole") })
	must(t, s.EndLazy(d))
	later, doneLater := s.rootfs(snap)
	defer doneLater()
	doneFirst()
	if got := read(t, filepath.Join(first.Layers[0], "fs", "file")); got != "lazy" {
		t.Errorf("the mount says %q", got)
	}
	if got := read(t, filepath.Join(later.Layers[0], "fs", "file")); got != "whole" {
		t.Errorf("who comes later reads %q", got)
	}
	// Until the last is done the layer cannot be shown again, even if it has gone.
	must(t, s.Remove(t.Context(), "old"))
	must(t, s.RemoveLayer(t.Context(), d))
	if _, err := s.BeginLazy(d); !errors.Is(err, ErrLayerInUse) {
		t.Errorf("begin: %v", err)
	}
	doneSecond()
	must(t, s.Flush(t.Context()))
	nothingIn(t, s)
	_, err = s.BeginLazy(d)
	must(t, err)
	must(t, s.AbortLazy(d))
}
