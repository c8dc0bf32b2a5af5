//go:build vm

package localpath

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// projectOf returns the number that a volume's directory has, 0 for none of ours.
func projectOf(parent int, name string) uint32 {
	dir, err := unix.Openat(parent, name, openDir, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(dir)
	a, err := attributes(dir)
	if err != nil || a.project < firstProject || a.project >= firstProject+projectCount {
		return 0
	}
	return a.project
}

// mountDisk returns a directory with an empty file system.
func mountDisk(t *testing.T, mkfs []string, options string) string {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 400<<20)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{append(mkfs, image), {"mount", "-o", options, image, dir}} {
		if said, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, said)
		}
	}
	t.Cleanup(func() {
		if said, err := exec.Command("umount", "-d", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, said)
		}
	})
	return dir
}

// asContainer runs f on a thread without CAP_SYS_RESOURCE: limits do not hold for those that have
// it, and containers do not.
func asContainer(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for ever: the thread ends with this goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&header, &caps[0]); err != nil {
			panic(err)
		}
		caps[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
		if err := unix.Capset(&header, &caps[0]); err != nil {
			panic(err)
		}
		f()
	}()
	<-done
}

// On ext4 and xfs with project quotas a claim's size is a limit of its own, and a volume that is
// full can be deleted. Without such quotas nothing stops the same writes. It needs a kernel with
// quotas and both file systems: `make test-vm` runs it in a virtual machine.
func TestProjectQuotas(t *testing.T) {
	ext4 := []string{"mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"}
	xfs := []string{"mkfs.xfs", "-q"}
	for _, test := range []struct {
		name, options string
		mkfs          []string
		limited       bool
	}{
		{"ext4", "loop,prjquota", ext4, true},
		{"xfs", "loop,prjquota", xfs, true},
		{"ext4 that only counts", "loop", ext4, false},
		{"xfs that only counts", "loop,pqnoenforce", xfs, false},
		{"xfs without", "loop", xfs, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := dirs{root: mountDisk(t, test.mkfs, test.options), projects: newProjects(slog.Default())}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			limited := func(unlimited, err error) {
				t.Helper()
				must(errors.Join(unlimited, err))
			}
			full := func(name string) (written int64, err error) {
				asContainer(func() { written, err = fill(t, filepath.Join(d.path(name), "file")) })
				return written, err
			}
			limited(d.make("pvc-a", 4<<20))
			limited(d.make("pvc-b", 6<<20+1))
			if info, err := os.Stat(d.path("pvc-a")); err != nil || info.Mode().Perm() != 0o777 {
				t.Errorf("the volume: %v, %v", info, err)
			}
			if !test.limited {
				if written, err := full("pvc-a"); err != nil {
					t.Errorf("%d bytes could be written, %v", written, err)
				}
				must(d.remove(t.Context(), "pvc-a"))
				return
			}
			for name, size := range map[string]int64{"pvc-a": 4 << 20, "pvc-b": 6 << 20} {
				written, err := full(name)
				if !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) || written > size || written < size/2 {
					t.Errorf("%s: %d of %d bytes could be written, %v", name, written, size, err)
				}
			}
			d.projects = newProjects(slog.Default()) // of another process

			var making sync.WaitGroup
			for i := range 20 {
				making.Go(func() {
					if _, err := d.make(fmt.Sprint("pvc-", i), 1<<20); err != nil {
						t.Error(err)
					}
				})
			}
			making.Wait()
			volumes, err := d.open(volumesDir)
			must(err)
			defer volumes.Close()
			names, err := d.list()
			must(err)
			numbers := map[uint32]string{}
			for _, name := range names {
				number := projectOf(int(volumes.Fd()), name)
				if other := numbers[number]; number == 0 || other != "" {
					t.Errorf("%s has number %d, %q too", name, number, other)
				}
				numbers[number] = name
			}
			if len(names) != 22 {
				t.Errorf("there are %q", names)
			}
			// A pod may give its volume's directory another's number. When it is deleted, the other
			// keeps its limit.
			of := projectOf(int(volumes.Fd()), "pvc-b")
			before, err := projectUse(int(volumes.Fd()), of)
			must(err)
			must(setProject(int(volumes.Fd()), "pvc-a", of))
			must(d.remove(t.Context(), "pvc-a"))
			if left, err := projectUse(int(volumes.Fd()), of); err != nil || before.hardSpace == 0 || left.hardSpace != before.hardSpace {
				t.Errorf("the limit of another volume was %+v and is %+v, %v", before, left, err)
			}
			// An administrator may count all volumes together.
			must(setProject(unix.AT_FDCWD, volumes.Name(), 7))
			limited(d.make("pvc-c", 4<<20))
			if made, err := d.has("pvc-c"); err != nil || !made {
				t.Errorf("below a project: %v, %v", made, err)
			}
			must(d.discard("pvc-c"))
		})
	}
}
