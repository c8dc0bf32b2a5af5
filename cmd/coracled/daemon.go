package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/coracle-project/coracle/cmd/coracled/config"
	"github.com/coracle-project/coracle/cri"
	"github.com/coracle-project/coracle/internal/version"
	"github.com/coracle-project/coracle/pod"
)

// grace is how long calls under way may take after SIGTERM. Operations that they
// began are rolled on by the next start.
const grace = 5 * time.Second

// runDaemon serves until SIGTERM or SIGINT. Containers stay.
func runDaemon(ctx context.Context, c config.Config, respawn []string, log *slog.Logger) error {
	if err := needRoot(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// A reader of our log that goes away, or a terminal that is closed, is no
	// reason to end.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	klog.SetSlogLogger(log) // what the stream library has to say
	memory := limitMemory()
	defer memory.stop()

	began := time.Now()
	if err := makeDirs(c); err != nil {
		return err
	}
	release, err := lockBoth(c)
	if err != nil {
		return err
	}
	defer release()
	n, err := startNode(ctx, c, respawn, log)
	if err != nil {
		return err
	}
	err = n.serve(ctx, memory.worked, began)
	return errors.Join(err, n.close())
}

// needRoot says at once what a mkdir or mount would say later in other words.
func needRoot() error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("must run as root, not as user %d", uid)
	}
	return nil
}

// makeDirs makes the two places that hold everything, for root alone: below them
// are images' files as the images made them, set-user-id programs included.
func makeDirs(c config.Config) error {
	for _, dir := range []string{c.Root, c.State} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	return nil
}

// serve answers CRI calls until ctx ends.
func (n *node) serve(ctx context.Context, worked func(), began time.Time) error {
	server, err := cri.New(cri.Config{
		Version:           version.Number(),
		SystemdCgroup:     n.config.Cgroup.Driver == "systemd",
		RecursiveReadonly: recursiveReadonly(),
		Handlers:          n.config.Runtime.Handlers,
		ImageFS:           n.images.Root(),
		StreamAddress:     n.config.Stream.Address,
		Info: map[string]any{
			"config": config.Keys(n.config), "version": version.String(), "golang": runtime.Version(), "pid": os.Getpid(),
		},
	}, cri.Deps{
		Pods: n.pods, Images: n.images, Spec: n.spec, Worked: worked, Log: n.log,
	})
	if err != nil {
		return err
	}
	l, err := listen(n.config.Socket())
	if err != nil {
		server.Stop(ctx)
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	n.log.Info("ready", "version", version.Number(), "address", "unix://"+n.config.Socket(),
		"pods", len(n.pods.Pods(pod.PodFilter{})), "took", time.Since(began))
	if err := notify("READY=1"); err != nil {
		n.log.Warn("systemd does not know that we are ready", "error", err)
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	n.log.Info("stopping; containers stay")
	if err := notify("STOPPING=1"); err != nil {
		n.log.Warn("systemd does not know that we stop", "error", err)
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	server.Stop(bounded)
	return <-served
}

// spec reads the OCI spec that the shim made a container from.
func (n *node) spec(c pod.Container) (json.RawMessage, error) {
	return os.ReadFile(filepath.Join(n.config.State, "containers", c.ID, "config.json"))
}

// recursiveReadonly says whether the kernel has mount_setattr(2), since 5.12. The
// call itself cannot succeed.
func recursiveReadonly() bool {
	err := unix.MountSetattr(-1, "", 0, &unix.MountAttr{})
	return !errors.Is(err, unix.ENOSYS)
}
