package main

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

// stack is a Kubernetes that can be started once.
type stack interface {
	// start starts everything, and returns when all has been started or something could not be.
	start(ctx context.Context) error
	// kubeconfig is the administrator's, which start makes.
	kubeconfig() string
	// programs are the executables of the control plane and the kubelet.
	programs() []string
	// runtime is the CRI socket.
	runtime() string
	// stop ends everything that start has started; it may be called after a start that failed.
	stop() error
}

// nodeName is the one real node.
const nodeName = "bench"

// coracle is what `coracle up` starts.
type coracle struct {
	settings
}

func (c *coracle) state() string      { return filepath.Join(c.dir, "state") }
func (c *coracle) kubeconfig() string { return filepath.Join(c.dir, "root", "kubeconfig") }
func (c *coracle) runtime() string    { return filepath.Join(c.state(), "coracle.sock") }
func (c *coracle) programs() []string {
	return []string{filepath.Join(c.bin, "coracle"), filepath.Join(c.bin, "coracle-kube")}
}

func (c *coracle) start(ctx context.Context) error {
	return c.command(ctx, "up", "--config", c.config, "--node-name", nodeName, "--node-ip", c.ip, "--bind-address", c.ip,
		"--cgroup-root", "/"+c.cgroup, "--pod-log-dir", filepath.Join(c.dir, "logs", "pods"))
}

func (c *coracle) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	return c.command(ctx, "down", "--purge")
}

func (c *coracle) command(ctx context.Context, args ...string) error {
	args = append(args, "--root", filepath.Join(c.dir, "root"), "--state", c.state())
	if said, err := exec.CommandContext(ctx, c.programs()[0], args...).CombinedOutput(); err != nil {
		return fmt.Errorf("coracle %s: %w:\n%s", args[0], err, said)
	}
	return nil
}

// process is a program of upstream's stack.
type process struct {
	cmd    *exec.Cmd
	exit   chan struct{} // closed at its end
	ending atomic.Bool   // it was told to end
}

// launch starts a program that writes to a log named after it. fail is told if it ends by itself.
func launch(fail context.CancelCauseFunc, dir, program string, args ...string) (*process, error) {
	name := filepath.Base(program)
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{cmd: exec.Command(program, args...), exit: make(chan struct{})}
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

// end lets a process end.
func (p *process) end() error {
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
