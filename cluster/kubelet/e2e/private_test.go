package e2e

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// other is a user of the host without any rights.
const other = 65534

// asOther runs f on a thread that reaches files as other does, and throws the thread away.
func asOther(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		_, _ = unix.SetfsgidRetGid(other)
		_, _ = unix.SetfsuidRetUid(other) // also takes the capabilities that override permissions
		f()
	}()
	<-done
}

// closed fails for each directory below top, and for top itself, that other can enter or list. It
// returns how many it has seen.
func closed(t *testing.T, top string) (dirs int) {
	t.Helper()
	var all []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another process of the node is at work
		}
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	asOther(func() {
		for _, dir := range all {
			var st unix.Stat_t
			if err := unix.Stat(dir+"/.", &st); !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOENT) {
				t.Errorf("user %d can enter %s: %v", other, dir, err)
			}
			if fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
				t.Errorf("user %d can list %s", other, dir)
				_ = unix.Close(fd)
			}
		}
	})
	return len(all)
}

// runAsOther executes a program of a container's as other, on the host, and returns who it says it
// is.
func runAsOther(program string) (string, error) {
	cmd := exec.Command(program, "whoami")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// What a container leaves with a set-user-id bit must not make a user of the host root
// (CVE-2021-41103, CVE-2024-25621), also where a version that did not close its directories has
// run. The bit still does what it should inside.
func TestUsersOfTheHostReachNoFileOfAContainer(t *testing.T) {
	n := newNode(t, nil)
	state := filepath.Dir(n.runtime.socket)
	tops := []string{n.opts.RootDir}
	if n.runtime.name != "containerd" {
		tops = append(tops, filepath.Join(state, "root"), filepath.Join(state, "state"))
	}
	for _, dir := range []string{n.dir, state} { // the tests' own, which are closed
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	p := n.create(emptyDir(n.pod("trap", container("c", "setuid", "/suid", ",", "setuid", "/shared/suid", ",", "append", "/shared/made", "x",
		",", "sleep"))))
	n.until(p, "ready", ready)
	var suid []string
	find := func() {
		suid = nil
		for _, top := range tops {
			err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.Name() != "suid" {
					return nil
				}
				if info, err := d.Info(); err == nil && info.Mode()&fs.ModeSetuid != 0 { // it is made in the end
					suid = append(suid, path)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	wanted := 1 // in the volume
	if n.runtime.name != "containerd" {
		wanted = 3 // in the mounted root, and in the directory of its changes
	}
	for deadline := time.Now().Add(patience); len(suid) < wanted; find() {
		if time.Now().After(deadline) {
			t.Fatalf("set-user-id programs of the container: %v", suid)
		}
		runtime.Gosched()
	}
	for _, program := range []string{"/suid", "/shared/suid"} {
		if who := strings.TrimSpace(n.exec(p, "c", "as", "1000", program, "whoami")); who != "0" {
			t.Errorf("inside, user 1000 runs %s as user %s", program, who)
		}
	}

	attack := func(t *testing.T) {
		for _, program := range suid {
			if who, err := runAsOther(program); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("user %d ran %s as user %q: %v", other, program, who, err)
			}
		}
		for _, top := range tops {
			if dirs := closed(t, top); dirs < 5 {
				t.Errorf("%s has %d directories", top, dirs)
			}
		}
	}
	t.Run("as started", attack)

	// The attack works where directories are open, as older versions left them.
	for _, program := range suid {
		for dir := filepath.Dir(program); dir != n.dir && dir != state; dir = filepath.Dir(dir) {
			if info, err := os.Stat(dir); err != nil || os.Chmod(dir, info.Mode()|0o011) != nil {
				t.Fatalf("open %s: %v", dir, err)
			}
		}
		if who, err := runAsOther(program); err != nil || who != "0" {
			t.Errorf("control: with open directories user %d ran %s as user %q: %v", other, program, who, err)
		}
	}

	n.stop()
	n.runtime.stop(syscall.SIGTERM)
	n.runtime.start()
	n.start()
	client := n.client()
	for deadline := time.Now().Add(patience); ; {
		_, err := client.Version(n.ctx)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	t.Run("started again", attack)
}
