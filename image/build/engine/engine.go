// Package engine runs BuildKit's daemon for the time of one build, with coracle-oci as the
// runtime of its containers.
//
// A daemon that only runs while something is built costs an idle node nothing, and none of its
// mounts stay: they are in a namespace of their own, which ends with it. Its cache is in
// a directory that outlives it. One build at a time has that directory.
package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config says where things are.
type Config struct {
	Root  string // directory of the cache
	State string // directory of the socket
	// Buildkitd and Runtime are the programs.
	Buildkitd, Runtime string
	// Keep is how many bytes the cache may have; what has not been used for longest goes.
	Keep int64
}

// Engine is a running daemon.
type Engine struct {
	cmd    *exec.Cmd
	lock   *os.File
	log    *tail
	exited chan error
	root   string
	socket string
}

// grace is how long the daemon may take to end.
const grace = 10 * time.Second

// Start starts the daemon and returns when it takes connections. wait is called
// if another build has to end first. Start must be called by a
// goroutine that is locked to its thread, for the daemon ends with that.
func Start(ctx context.Context, c Config, wait func()) (*Engine, error) {
	for _, dir := range []string{c.Root, c.State} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	lock, err := takeLock(ctx, filepath.Join(c.Root, "lock"), wait)
	if err != nil {
		return nil, err
	}
	e := &Engine{lock: lock, log: &tail{}, exited: make(chan error, 1), root: c.Root, socket: filepath.Join(c.State, "buildkitd.sock")}
	if err := e.start(ctx, c); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return e, nil
}

// takeLock waits for the lock of the cache.
func takeLock(ctx context.Context, path string, wait func()) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		wait()
		done := make(chan error, 1)
		go func() { done <- unix.Flock(int(f.Fd()), unix.LOCK_EX) }()
		select {
		case err = <-done:
		case <-ctx.Done():
			return nil, ctx.Err() // the process ends, and with it who waits
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// Socket is where the daemon is reached.
func (e *Engine) Socket() string { return e.socket }

func (e *Engine) start(ctx context.Context, c Config) error {
	config := filepath.Join(c.State, "buildkitd.toml") // else it would read /etc/buildkit's
	if err := os.WriteFile(config, []byte("[worker.oci]\ndefaultCgroupParent = \""+cgroupParent+"\"\n"), 0o600); err != nil {
		return err
	}
	if err := os.Remove(e.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	e.cmd = exec.Command(
		c.Buildkitd, "--config", config, "--root", filepath.Join(c.Root, "cache"), "--addr", "unix://"+e.socket,
		"--containerd-worker=false", "--oci-worker=true", "--oci-worker-binary", c.Runtime,
		// A build's network is the host's, as it is with buildkitd anywhere that has
		// no CNI configuration for it.
		"--oci-worker-net=host",
		"--oci-worker-gc", "--oci-worker-gc-keepstorage", keepStorage(c.Keep),
	)
	e.cmd.Env = environment()
	e.cmd.Stdout, e.cmd.Stderr = e.log, e.log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM, Unshareflags: syscall.CLONE_NEWNS}
	if err := e.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.Buildkitd, err)
	}
	go func() { e.exited <- e.cmd.Wait() }()
	return e.await(ctx)
}

// keepStorage is a bound of the cache as buildkitd wants it: reserved, free and maximum, MB.
func keepStorage(bytes int64) string { return fmt.Sprintf("%d,0,%d", bytes/2e6, bytes/1e6) }

// environment is what the daemon gets of ours: programs, temporary files, proxies.
func environment() []string {
	var env []string
	for _, name := range []string{
		"PATH", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
		"SSL_CERT_FILE", "SSL_CERT_DIR",
	} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// await waits for the socket, which nothing announces.
func (e *Engine) await(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := net.Dial("unix", e.socket); err == nil {
			return c.Close()
		}
		select {
		case <-tick.C:
		case err := <-e.exited:
			e.exited <- err
			return fmt.Errorf("buildkitd does not start: %w\n%s", err, e.log)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), e.end())
		}
	}
}

// Close ends the daemon, and lets the next build begin.
func (e *Engine) Close() error {
	err := e.end()
	removeCgroups()
	return errors.Join(err, e.lock.Close())
}

// cgroupParent is above the cgroups of RUN.
const cgroupParent = "/coracle-build"

// removeCgroups removes the parent, which buildkitd leaves in each hierarchy, and what a
// killed one has left below it. One that has processes stays.
func removeCgroups() {
	for _, at := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		for _, below := range []string{"/*", ""} {
			left, _ := filepath.Glob(at + cgroupParent + below)
			for _, dir := range left {
				_ = unix.Rmdir(dir) // files there are ENOTDIR
			}
		}
	}
}

func (e *Engine) end() error {
	_ = e.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-e.exited:
		e.exited <- err
		return nil // it was told to end; how, no one needs to know
	case <-timer.C:
	}
	err := e.cmd.Process.Kill()
	<-e.exited
	return errors.Join(fmt.Errorf("buildkitd did not end within %s, and was killed", grace), err)
}

// Log is the end of what the daemon has said.
func (e *Engine) Log() string { return strings.TrimSpace(e.log.String()) }
