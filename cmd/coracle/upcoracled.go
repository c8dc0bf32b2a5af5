package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// launched is the coracled that an up has started.
type launched struct {
	cmd *exec.Cmd // nil if the up has started none
	// served is whether it got the lock and answered, pods whether pods or a shim were there before
	// it.
	served, pods bool
}

// upCoracled starts coracled, unless one runs, and returns when it answers. While a coracled
// without pods starts, it calls meanwhile. One that has pods to find again may take longer than the
// cluster process, whose kubelet would report a node that is not ready.
func (u *upRun) upCoracled(ctx context.Context, meanwhile func() error) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	ofEarlierUp := u.last.Coracled && u.last.Boot == boot
	ofAnother := func() error {
		u.o.Coracled, u.o.Boot = false, ""
		if ofEarlierUp {
			u.o.Coracled, u.o.Boot = true, boot
		}
		return u.o.remember(u.place)
	}
	answers := func(ctx context.Context) error {
		_, err := runtimeVersion(ctx, u.Socket())
		return err
	}
	if u.runtime {
		if err := ofAnother(); err != nil {
			return err
		}
		if ended, err := u.awaitOther(ctx, answers); !ended {
			return err
		}
	}
	program, err := sibling("coracled")
	if err != nil {
		return err
	}
	if u.coracled.pods, err = u.podsRemain(); err != nil {
		return err
	}
	// Written first: a coracled that was started and then not remembered would never be ended.
	u.o.Coracled, u.o.Boot = true, boot
	if err := u.o.remember(u.place); err != nil {
		return err
	}
	log := u.coracledLog()
	cmd, err := launch(log, program, coracledArgs(u.place, *u.o)...)
	if err != nil {
		return err
	}
	u.coracled.cmd = cmd
	if !u.coracled.pods {
		if err := meanwhile(); err != nil {
			return err
		}
	}
	err = await(ctx, "coracled", log, cmd, answers)
	// systemd, or the keeper of a coracled that had died, may have been quicker to start one.
	if err := orOther(ctx, err, u.place.runtime(), "coracled", log, answers); err != nil {
		return err
	}
	pid, err := holder(u.place.runtime())
	if err != nil {
		return err
	}
	if u.coracled.served = pid == cmd.Process.Pid; !u.coracled.served {
		return ofAnother()
	}
	return nil
}

// awaitOther waits for a coracled that ran before until it answers, or has ended: its lock is free
// then.
func (u *upRun) awaitOther(ctx context.Context, answers func(context.Context) error) (ended bool, err error) {
	// One with another --state may serve the socket, which has no lock here.
	try, cancel := context.WithTimeout(ctx, longestTry)
	defer cancel()
	if answers(try) == nil {
		return false, nil
	}
	lock := u.place.runtime()
	ended, err = awaitHolder(ctx, lock, "coracled", u.coracledLog(), answers)
	if err == nil {
		return ended, nil
	}
	if pid, herr := holder(lock); herr == nil && pid != 0 {
		return false, fmt.Errorf("up: coracled with pid %d, which ran before, does not answer at %s: %w; "+
			"'kill -9 %d' has its keeper or systemd start it again, and no pod ends", pid, u.Socket(), ctx.Err(), pid)
	}
	return false, err
}

// podsRemain says whether a coracled has left pods or a shim in the state directory. They may run.
func (u *upRun) podsRemain() (bool, error) {
	for _, dir := range []string{"pods", "shim"} {
		if _, err := os.Lstat(filepath.Join(u.state, dir)); !errors.Is(err, fs.ErrNotExist) {
			return true, err
		}
	}
	return false, nil
}

// endCoracled ends the coracled that this up has started, if any. It also ends pods and all that
// belongs to coracled, if all of that is this up's: purged says so.
func (u *upRun) endCoracled(ctx context.Context) (purged bool, err error) {
	if u.coracled.cmd == nil {
		return false, nil
	}
	if err := endLaunched(ctx, u.coracled.cmd); err != nil || u.coracled.pods {
		return false, err
	}
	// Its keeper may have started it again. If it never served, who has the lock is another.
	if pid, err := holder(u.place.runtime()); err != nil || pid != 0 && !u.coracled.served {
		return false, err
	}
	return true, errors.Join(purgeCoracled(ctx, u.place, *u.o, false), unmountBelow(filepath.Join(u.kubelet(), "pods")),
		removeCgroups(u.o.CgroupRoot))
}

// endLaunched ends a program that launch has started, which may not have come to its lock yet.
func endLaunched(ctx context.Context, cmd *exec.Cmd) error {
	if cmd == nil || cmd.Process.Signal(unix.Signal(0)) != nil {
		return nil // it has ended
	}
	return end(ctx, cmd.Process.Pid)
}
