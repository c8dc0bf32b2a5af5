package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// nobody is the user that the program runs as while it talks to routers.
const nobody = 65534

// giveUpRoot leaves the process without any of root's rights, and without a way to get them back:
// what it reads comes from the network. Opened files stay open. Without root's rights it has
// nothing to give up.
func giveUpRoot() error {
	if os.Geteuid() != 0 {
		return nil
	}
	parent := os.Getppid()
	err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(nobody, nobody, nobody), syscall.Setresuid(nobody, nobody, nobody))
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
