package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
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

// podNetworks has a network for each of 8,192 nodes.
const podNetworks = "10.128.0.0/11,fd85:c0ac:1e00::/48"

func (c *coracle) start(ctx context.Context) error {
	return c.command(ctx, "up", "--runtime-config", c.config, "--node-name", nodeName, "--node-ip", c.ip, "--bind-address", c.ip,
		"--eviction-hard", "memory.available<100Mi", // as upstream's below: a disk that is nearly full holds nothing up
		"--pod-cidr", podNetworks, "--cgroup-root", "/"+c.cgroup, "--pod-log-dir", filepath.Join(c.dir, "logs", "pods"))
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
