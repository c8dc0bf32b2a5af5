package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// user is the user and the group that the program runs as while it talks to routers. No other
// process may signal it, so it is not 65534, and of a range that neither distributions nor systemd
// give to users.
const user = 61079

// giveUpRoot leaves the process without any of root's rights, and without a way to get them back:
// what it reads comes from the network. Opened files stay open. Without root's rights it has
// nothing to give up.
func giveUpRoot() error {
	if os.Geteuid() != 0 {
		return nil
	}
	parent := os.Getppid()
	err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(user, user, user), syscall.Setresuid(user, user, user))
	if err != nil {
		return err
	}
	if err := onAllThreads(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	// The kernel forgets it when the user changes. SIGKILL, since peers are to keep the routes.
	if err := onAllThreads(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL)); err != nil {
		return fmt.Errorf("end with the parent: %w", err)
	}
	if os.Getppid() != parent {
		return errors.New("the supervisor has ended")
	}
	return nil
}

func onAllThreads(option int, argument uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, uintptr(option), argument, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
