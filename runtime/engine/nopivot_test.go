package engine_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// ramdiskArg makes the test binary a process that runs the rest of its arguments with the
// kernel's own ramdisk as the root directory, which holds the directories of the host.
const ramdiskArg = "on-ramdisk"

func onRamdisk(args []string) int {
	status, err := ramdisk(args)
	if err != nil {
		fmt.Println("ramdisk:", err)
		return 1
	}
	return status
}

// ramdisk takes away what is mounted on the ramdisk. It is always there: a mount namespace's first
// mount, below the host's root.
func ramdisk(args []string) (int, error) {
	goruntime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return 0, err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return 0, err
	}
	ns, err := unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return 0, err
	}
	trees, links := map[string]int{}, map[string]string{}
	for _, e := range entries {
		if to, err := os.Readlink("/" + e.Name()); err == nil {
			links[e.Name()] = to
		} else if e.IsDir() {
			fd, err := unix.OpenTree(unix.AT_FDCWD, "/"+e.Name(), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
			if err != nil {
				return 0, err
			}
			trees[e.Name()] = fd
		}
	}
	if err := unix.Unmount("/", unix.MNT_DETACH); err != nil {
		return 0, err
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNS); err != nil {
		return 0, err
	}
	for name, fd := range trees {
		if err := os.Mkdir("/"+name, 0o755); err == nil {
			defer func() { _ = unix.Unmount("/"+name, unix.MNT_DETACH); _ = os.Remove("/" + name) }()
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, "/"+name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return 0, err
		}
	}
	for name, to := range links {
		if err := os.Symlink(to, "/"+name); err == nil {
			defer os.Remove("/" + name)
		}
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), nil
}

// TestNoPivot makes containers where pivot_root(2) does not work.
func TestNoPivot(t *testing.T) {
	dir := t.TempDir()
	id := fmt.Sprintf("nopivot-%d", os.Getpid())
	spec := runtimetest.Spec(id, "/bin/sh", "-c", "read x; ls -d /bin /usr 2>&1; true")
	o := order{State: filepath.Join(dir, "state"), Bundle: runtimetest.Bundle(t), ID: id, Spec: spec}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if said, err := o.run(t, exe, ramdiskArg); err == nil || !strings.Contains(said, "use --no-pivot") {
		t.Errorf("without --no-pivot: %v, %s", err, said)
	}
	o.NoPivot = true
	process := *spec.Process
	process.Args = []string{"/bin/sh", "-c", "ls /; grep -c ' / ' /proc/mounts"}
	o.Exec = &process
	said, err := o.run(t, exe, ramdiskArg)
	if want := "bin\ndev\nproc\nsys\ntmp\n1\nls: /usr: No such file or directory\n/bin"; err != nil || said != want {
		t.Errorf("with --no-pivot: %v, %q", err, said)
	}
}
