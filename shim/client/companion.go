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

// Companion is a program next to the shims that has to outlive the daemon as they do: the keeper
// holds its socket, and what else it gives there, and starts it again when it dies. It gets the
// arguments -keeper DIR -name NAME -listen-fd FD.
type Companion struct {
	Name   string // of its directory below Config.StateDir
	Binary string
	Socket string   // name in that directory
	Env    []string // next to what shims get
	// PID asks the one that runs, perhaps of an earlier keeper, for its pid.
	PID func(context.Context) (int, error)
}

const companionPrefix = "helper/"

// CompanionDir is the directory of a companion's socket and log.
func (c *Client) CompanionDir(name string) string { return filepath.Join(c.cfg.StateDir, name) }

// StartCompanion sees to it that a program runs, and does so again with every new keeper.
func (c *Client) StartCompanion(ctx context.Context, comp Companion) error {
	c.mu.Lock()
	c.companions[comp.Name] = comp
	c.mu.Unlock()
	return c.ensureCompanion(ctx, comp)
}

// ensureCompanions gives them to a new keeper.
func (c *Client) ensureCompanions(ctx context.Context) {
	c.mu.Lock()
	all := make([]Companion, 0, len(c.companions))
	for _, comp := range c.companions {
		all = append(all, comp)
	}
	c.mu.Unlock()
	for _, comp := range all {
		if err := c.ensureCompanion(ctx, comp); err != nil {
			c.cfg.Log.Error("program is not supervised", "program", comp.Name, "err", err)
		}
	}
}

func (c *Client) ensureCompanion(ctx context.Context, comp Companion) error {
	c.keeper.starting.Lock()
	defer c.keeper.starting.Unlock()
	k := c.keeper.get()
	if k == nil {
		return fmt.Errorf("start %s: no keeper: %w", comp.Name, ErrUnavailable)
	}
	program := companionPrefix + comp.Name
	_, err := k.Who(program)
	known := err == nil
	if err != nil && !errors.Is(err, keeper.ErrNotFound) {
		return fmt.Errorf("start %s: %w", comp.Name, err)
	}
	dir := c.CompanionDir(comp.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("start %s: %w", comp.Name, err)
	}
	log, err := os.OpenFile(filepath.Join(dir, comp.Name+".log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", comp.Name, err)
	}
	defer log.Close()
	p := keeper.Program{
		Name: program, Path: comp.Binary, Log: log, BoundLog: true, Env: append(shimEnv(), comp.Env...),
		Args: []string{comp.Binary, "-keeper", c.cfg.StateDir, "-name", program, "-listen-fd", "3"},
	}
	if known {
		// The running companion stays. The keeper learns the command line of the next one.
	} else if p.PID, p.PIDFD = runningCompanion(ctx, comp); p.PIDFD != nil {
		defer p.PIDFD.Close()
	} else if err := makeListener(k, dir, comp.Socket, program); err != nil {
		return fmt.Errorf("start %s: %w", comp.Name, err)
	}
	if _, err := k.Supervise(p); err != nil {
		return fmt.Errorf("start %s: %w", comp.Name, err)
	}
	return nil
}

// runningCompanion finds the program of an earlier keeper.
func runningCompanion(ctx context.Context, comp Companion) (pid int, fd *os.File) {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	pid, err := comp.PID(ctx)
	if err != nil {
		return 0, nil
	}
	if fd, err = pidfd.Open(pid); err != nil {
		return 0, nil
	}
	return pid, fd
}

// stopCompanions ends all companions, those of an earlier daemon too.
func (c *Client) stopCompanions(ctx context.Context) error {
	c.mu.Lock()
	clear(c.companions)
	c.mu.Unlock()
	k := c.keeper.get()
	if k == nil {
		return nil
	}
	c.keeper.starting.Lock()
	defer c.keeper.starting.Unlock()
	keys, err := k.List("pass/" + companionPrefix)
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
