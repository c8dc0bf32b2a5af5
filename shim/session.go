package shim

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// rounds is how often killSession looks for what was forked while it killed. A process that
// forks faster than it is found is the container's own affair, whose end kills it.
const rounds = 16

// dying is how long killSession waits for what it has killed: it takes no time, unless the
// machine has much else to do, or the process is frozen or waits for a broken disk.
const dying = 5 * time.Second

// killSession kills what is left of an exec, and waits until it is gone: the processes of the
// session that it led. Its children would go on after a timeout otherwise, and hold its streams
// open. One that began a session of its own meant to stay.
func (c *container) killSession(ctx context.Context, leader int) error {
	engine, err := c.alive()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dying)
	defer cancel()
	for range rounds {
		killed, err := killOnce(ctx, engine, leader)
		if err != nil {
			return fmt.Errorf("kill the session of exec process %d in container %s: %w", leader, c.id, err)
		}
		if killed == 0 {
			return nil
		}
	}
	return nil
}

// killOnce kills whom it finds, and waits for them; more may have been forked meanwhile.
func killOnce(ctx context.Context, engine runtime.Container, leader int) (killed int, err error) {
	pids, err := engine.Pids(ctx)
	if err != nil {
		return 0, err
	}
	var dead []*os.File
	defer func() {
		for _, f := range dead {
			f.Close()
		}
	}()
	for _, pid := range pids {
		if pid == leader {
			continue
		}
		f, err := killMember(pid, leader)
		if err != nil {
			return len(dead), err
		}
		if f != nil {
			dead = append(dead, f)
		}
	}
	for _, f := range dead {
		if pidfd.Ended(ctx, f) != nil {
			return 0, nil // the kernel does not end it: nobody can do more
		}
	}
	return len(dead), nil
}

// killMember kills a process, and returns its pidfd, if it is in the session and alive. The pidfd
// comes before the look, so that what is killed is what was looked at.
func killMember(pid, leader int) (*os.File, error) {
	f, err := pidfd.Open(pid)
	if err != nil {
		return nil, nil // it has ended
	}
	stat, err := pidfd.ReadStat(pid)
	if err != nil || stat.Session != leader || stat.State == 'Z' || stat.State == 'X' {
		f.Close()
		return nil, nil
	}
	withFD(f, func(fd int) { err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) })
	if err == nil {
		return f, nil
	}
	f.Close()
	if err == unix.ESRCH {
		err = nil
	}
	return nil, err
}
