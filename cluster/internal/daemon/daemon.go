// Package daemon runs the programs of a cluster that is compared with ours: each in a session of
// its own, writing to a log named after it, until it is told to end.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// Process is a program that runs.
type Process struct {
	cmd    *exec.Cmd
	exit   chan struct{} // closed at its end
	ending atomic.Bool   // it was told to end
}

// Start starts a program, which appends to dir/NAME.log. fail is told if it ends by itself.
func Start(fail context.CancelCauseFunc, dir, program string, args ...string) (*Process, error) {
	name := filepath.Base(program)
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &Process{cmd: exec.Command(program, args...), exit: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.exit)
		err := p.cmd.Wait()
		if !p.ending.Load() {
			tail, _ := exec.Command("tail", "-n", "15", log.Name()).Output()
			fail(fmt.Errorf("%s has ended: %v\n%s", name, err, tail))
		}
	}()
	return p, nil
}

// End lets a process end, and returns when it has.
func (p *Process) End() error {
	p.ending.Store(true)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exit:
		return nil
	case <-time.After(30 * time.Second):
		return errors.Join(fmt.Errorf("%s does not end", p.cmd.Path), p.cmd.Process.Kill())
	}
}
