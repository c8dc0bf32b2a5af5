// Package confine runs a program on untrusted files, so that an attacker who exploits a fault in it
// gains little. The program runs as the user nobody with few capabilities, in its own mount,
// network, IPC and UTS namespaces, with its own /tmp and with limits. System calls and files that
// it does not need are denied.
//
// The thread that starts the program is confined first, and the program inherits that. The thread
// is then discarded. Landlock is skipped if the kernel has none (before Linux 5.13, or if it is not
// enabled); everything else is always applied.
package confine

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
)

// Where the program sees its directories: /tmp is where C's libraries make temporary files.
const (
	Scratch = "/tmp"
	Files   = Scratch + "/in"
)

// Nobody is the user and the group of the programs.
const Nobody = 65534

// Program is what is run.
type Program struct {
	// Name is looked up in PATH. ErrNotFound of os/exec if it is not there.
	Name string
	Args []string
	// Files is a directory that the program sees as /tmp/in, read-only, and Scratch one that it
	// sees as /tmp. It has to be No one's, with an empty directory in. Both, or none, are all
	// that there is besides the system's programs and libraries, where Landlock is.
	Files, Scratch string
	// Stdin is what the program reads; nil is nothing. Stdout is where its output goes; nil is to
	// what is kept of what it says.
	Stdin, Stdout *os.File
	// Capabilities are those of the program, by number.
	Capabilities []uintptr
	Limits       Limits
}

// Limits are what a program may take; all are set.
type Limits struct {
	CPU       time.Duration // whole seconds
	Memory    int64         // bytes of addresses
	FileBytes int64         // the size of a file that it writes
	Files     int           // open at a time
}

// script has a shell set limits and become the program: setting those of a process of another user
// takes CAP_SYS_RESOURCE, which a daemon in a container has not.
func (l Limits) script() string {
	return fmt.Sprintf(`ulimit -c 0 && ulimit -t %d && ulimit -v %d && ulimit -f %d && ulimit -n %d && exec "$0" "$@"`,
		l.CPU/time.Second, l.Memory>>10, l.FileBytes>>9, l.Files)
}

// lingering is how long what the program says is read once it has ended, or was killed: another
// process that it has left behind may hold its output open.
const lingering = time.Second

// maxOutput is how much of what a program says is kept.
const maxOutput = 1 << 10

// Run runs the program until it ends or ctx does. The error has the end of what the program
// said.
func Run(ctx context.Context, p Program) error {
	started, err := Start(ctx, p)
	if err != nil {
		return err
	}
	return started.Wait()
}

// Process is a program that was started.
type Process struct {
	ctx  context.Context // ends it
	name string
	cmd  *exec.Cmd
	said tail
}

// Start starts the program; Wait has to be called. It is killed when ctx ends. The program's ends
// of pipes are the caller's to close.
func Start(ctx context.Context, p Program) (*Process, error) {
	path, err := exec.LookPath(p.Name)
	if err != nil {
		return nil, err
	}
	if p.Stdin == nil {
		null, err := os.Open(os.DevNull) // now: the confined thread cannot
		if err != nil {
			return nil, err
		}
		defer null.Close()
		p.Stdin = null
	}
	s := &Process{ctx: ctx, name: p.Name}
	s.cmd = exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", p.Limits.script(), path}, p.Args...)...)
	s.cmd.Env, s.cmd.Dir = []string{}, "/"
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = p.Stdin, &s.said, &s.said
	if p.Stdout != nil {
		s.cmd.Stdout = p.Stdout
	}
	s.cmd.WaitDelay = lingering
	s.cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: Nobody, Gid: Nobody},
		AmbientCaps: p.Capabilities,
	}
	err = ownthread.Run(func() error {
		if err := confineThread(path, p); err != nil {
			return err
		}
		return s.cmd.Start()
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	return s, nil
}

// Wait waits until the program has ended. The error, if it is not that of ctx, has an
// exec.ExitError and the end of what the program said.
func (s *Process) Wait() error {
	err := s.cmd.Wait()
	if err != nil && s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", s.name, err, bytes.TrimSpace(s.said.b))
	}
	return nil
}

// confineThread gives up for good what the program does not need.
func confineThread(path string, p Program) error {
	namespaces := unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if p.Files != "" {
		namespaces |= unix.CLONE_NEWNS
	}
	if err := unix.Unshare(namespaces); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	writable := ""
	if p.Files != "" {
		if err := showFiles(p); err != nil {
			return err
		}
		writable = Scratch
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if err := restrictFiles(path, writable); err != nil {
		return err
	}
	return filterSyscalls()
}

// showFiles mounts the program's directories, in the calling thread's namespace. What is
// unmounted elsewhere meanwhile is unmounted here, too, and nothing that is mounted here elsewhere.
func showFiles(p Program) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep mounts from others: %w", err)
	}
	files, err := unix.OpenTree(unix.AT_FDCWD, p.Files, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone %s: %w", p.Files, err)
	}
	defer unix.Close(files)
	const readOnly = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if err := unix.MountSetattr(files, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: readOnly}); err != nil {
		return fmt.Errorf("make %s read-only: %w", p.Files, err)
	}
	if err := unix.Mount(p.Scratch, Scratch, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", p.Scratch, err)
	}
	if err := unix.MoveMount(files, "", unix.AT_FDCWD, Files, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("show %s: %w", p.Files, err)
	}
	return nil
}

// tail keeps the end of what is written.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-maxOutput):]
	return len(p), nil
}
