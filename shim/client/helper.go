package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/coracle-project/coracle/shim/keeper"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// Helper is a program beside the shims that has to outlive the daemon as they do: the keeper holds
// its socket, and what else it gives there, and starts it again when it dies. It gets the
// arguments -keeper DIR -name NAME -listen-fd FD.
type Helper struct {
	Name   string // of its directory below Config.StateDir
	Binary string
	Socket string   // name in that directory
	Env    []string // beside what shims get
	// PID asks the one that runs, perhaps of an earlier keeper, for its pid.
	PID func(context.Context) (int, error)
}

const helperPrefix = "helper/"

// HelperDir is the directory of a helper's socket and log.
func (c *Client) HelperDir(name string) string { return filepath.Join(c.cfg.StateDir, name) }

// StartHelper sees to it that a program runs, and does so again with every new keeper.
func (c *Client) StartHelper(ctx context.Context, h Helper) error {
	c.mu.Lock()
	c.helpers[h.Name] = h
	c.mu.Unlock()
	return c.ensureHelper(ctx, h)
}

// ensureHelpers gives them to a new keeper.
func (c *Client) ensureHelpers(ctx context.Context) {
	c.mu.Lock()
	all := make([]Helper, 0, len(c.helpers))
	for _, h := range c.helpers {
		all = append(all, h)
	}
	c.mu.Unlock()
	for _, h := range all {
		if err := c.ensureHelper(ctx, h); err != nil {
			c.cfg.Log.Error("program is not supervised", "program", h.Name, "error", err)
		}
	}
}

func (c *Client) ensureHelper(ctx context.Context, h Helper) error {
	c.keeper.starting.Lock()
	defer c.keeper.starting.Unlock()
	k := c.keeper.get()
	if k == nil {
		return fmt.Errorf("start %s: no keeper: %w", h.Name, ErrUnavailable)
	}
	program := helperPrefix + h.Name
	if _, err := k.Who(program); err == nil {
		return nil
	} else if !errors.Is(err, keeper.ErrNotFound) {
		return fmt.Errorf("start %s: %w", h.Name, err)
	}
	dir := c.HelperDir(h.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("start %s: %w", h.Name, err)
	}
	log, err := os.OpenFile(filepath.Join(dir, h.Name+".log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", h.Name, err)
	}
	defer log.Close()
	p := keeper.Program{
		Name: program, Path: h.Binary, Log: log, Env: append(shimEnv(), h.Env...),
		Args: []string{h.Binary, "-keeper", c.cfg.StateDir, "-name", program, "-listen-fd", "3"},
	}
	if p.PID, p.PIDFD = runningHelper(ctx, h); p.PIDFD != nil {
		defer p.PIDFD.Close()
	} else if err := makeListener(k, dir, h.Socket, program); err != nil {
		return fmt.Errorf("start %s: %w", h.Name, err)
	}
	if _, err := k.Supervise(p); err != nil {
		return fmt.Errorf("start %s: %w", h.Name, err)
	}
	return nil
}

// runningHelper finds the program of an earlier keeper.
func runningHelper(ctx context.Context, h Helper) (pid int, fd *os.File) {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	pid, err := h.PID(ctx)
	if err != nil {
		return 0, nil
	}
	if fd, err = pidfd.Open(pid); err != nil {
		return 0, nil
	}
	return pid, fd
}

// stopHelpers ends all helpers, those of an earlier daemon too.
func (c *Client) stopHelpers(ctx context.Context) error {
	c.mu.Lock()
	clear(c.helpers)
	c.mu.Unlock()
	k := c.keeper.get()
	if k == nil {
		return nil
	}
	c.keeper.starting.Lock()
	defer c.keeper.starting.Unlock()
	keys, err := k.List("pass/" + helperPrefix)
	if errors.Is(err, keeper.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, key := range keys {
		program := strings.TrimPrefix(key, "pass/")
		if err := endProgram(ctx, k, program); err != nil {
			return fmt.Errorf("end %s: %w", program, err)
		}
	}
	return nil
}
