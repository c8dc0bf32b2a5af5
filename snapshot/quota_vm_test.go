//go:build vm

package snapshot

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// asContainer runs f on a thread without CAP_SYS_RESOURCE, which limits mean nothing to, and
// which containers do not have.
func asContainer(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // forever: the thread ends with this goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		err := unix.Capget(&header, &caps[0])
		caps[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
		if err == nil {
			err = unix.Capset(&header, &caps[0])
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

var (
	ext4 = []string{"mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"}
	xfs  = []string{"mkfs.xfs", "-q"}
)

// mountDisk returns a directory with an empty file system.
func mountDisk(t *testing.T, options string, mkfs ...string) string {
	t.Helper()
	dir := t.TempDir()
	file, disk := filepath.Join(dir, "file"), filepath.Join(dir, "disk")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Truncate(file, 400<<20))
	must(t, os.Mkdir(disk, 0o755))
	for _, args := range [][]string{append(slices.Clone(mkfs), file), {"mount", "-o", options, file, disk}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	t.Cleanup(func() { must(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	return disk
}

// xfs has no record of a project that nothing was counted for yet.
func TestQuotasOfXFS(t *testing.T) {
	s := startedWith(t, Config{Root: filepath.Join(mountDisk(t, "loop,prjquota", xfs...), "root"), Driver: Overlay, Limit: Usage{Inodes: 500}})
	limited, err := s.Prepare(t.Context(), "limited",
		PrepareOptions{Target: filepath.Join(t.TempDir(), "limited"), Limit: Usage{Bytes: 10 << 20}})
	must(t, err)
	write := func(name string, size int) error {
		return asContainer(func() error {
			return os.WriteFile(filepath.Join(limited.Target, name), make([]byte, size), 0o644)
		})
	}
	must(t, write("five", 5<<20))
	if err := write("six", 6<<20); !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) {
		t.Errorf("over the limit of bytes: %v", err)
	}
}

// Quotas that are only counted keep no limit, so one is refused.
func TestQuotasThatAreNotEnforced(t *testing.T) {
	for name, disk := range map[string]string{"ext4": mountDisk(t, "loop", ext4...), "xfs": mountDisk(t, "loop,pqnoenforce", xfs...)} {
		s := New(Config{Root: filepath.Join(disk, "root"), Driver: Overlay, Limit: Usage{Inodes: 500}, Log: slog.New(slog.DiscardHandler)})
		if err := s.Start(t.Context()); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: started with %v", name, err)
		}
	}
}

// TestQuotas needs a kernel with quotas, which not every machine that builds has: `make
// test-vm` runs it in a virtual one.
func TestQuotas(t *testing.T) {
	disk := mountDisk(t, "loop,prjquota", ext4...)
	for _, driver := range []DriverName{Overlay, Native} {
		t.Run(string(driver), func(t *testing.T) {
			root := filepath.Join(disk, string(driver))
			s := startedWith(t, Config{Root: root, Driver: driver, Limit: Usage{Inodes: 500}})
			if s.quota == nil {
				t.Fatal("project quotas are not seen")
			}
			layers := commitLayers(t, s, 2)
			free := prepared(t, s, "free", layers...)
			o := PrepareOptions{Layers: layers, Target: filepath.Join(t.TempDir(), "limited"), Limit: Usage{Bytes: 10 << 20, Inodes: 100}}
			limited, err := s.Prepare(t.Context(), "limited", o)
			must(t, err)
			before, err := s.Usage(t.Context(), "limited")
			must(t, err)

			write := func(snap Snapshot, name string, size int) error {
				return asContainer(func() error {
					return os.WriteFile(filepath.Join(snap.Target, name), make([]byte, size), 0o644)
				})
			}
			must(t, write(limited, "five", 5<<20))
			must(t, write(free, "twenty", 20<<20))
			unix.Sync()
			after, err := s.Usage(t.Context(), "limited")
			must(t, err)
			if grown := after.Bytes - before.Bytes; grown != 5<<20 || after.Inodes != before.Inodes+1 {
				t.Errorf("usage grew by %d bytes and %d inodes", grown, after.Inodes-before.Inodes)
			}
			if err := write(limited, "six", 6<<20); !errors.Is(err, unix.EDQUOT) {
				t.Errorf("over the limit of bytes: %v", err)
			}
			must(t, os.Remove(filepath.Join(limited.Target, "six")))
			for i := 0; err == nil && i < 200; i++ {
				err = write(limited, fmt.Sprint("f", i), 0)
			}
			if !errors.Is(err, unix.EDQUOT) {
				t.Errorf("over the limit of inodes: %v", err)
			}
			// What was in the layers counts when it is written to.
			must(t, os.Rename(filepath.Join(free.Target, "top"), filepath.Join(free.Target, "moved")))

			s = again(t, s)
			if snap, err := s.Get("limited"); err != nil || snap.Project != limited.Project || snap.Limit != o.Limit {
				t.Errorf("after a restart: %+v, %v", snap, err)
			}
			must(t, os.Truncate(filepath.Join(s.snapshotDir("free"), recordName), 0))
			s = again(t, s)
			if snap, err := s.Get("free"); err != nil || snap.Project != free.Project {
				t.Errorf("with a damaged record: %+v, %v", snap, err)
			}
			must(t, s.Remove(t.Context(), "limited"))
			must(t, s.Remove(t.Context(), "free"))
			must(t, s.Flush(t.Context()))
			if u, _, err := s.quota.Of(limited.Project); err != nil || u.Bytes != 0 || u.Inodes != 0 {
				t.Errorf("after removal the project has %+v, %v", u, err)
			}
			if _, b, err := s.quota.Of(limited.Project); err != nil || b != (Usage{}) {
				t.Errorf("after removal the project's limit is %+v, %v", b, err)
			}
		})
	}
}
