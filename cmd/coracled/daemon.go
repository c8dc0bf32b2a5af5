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
	"slices"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/coracle-project/coracle/cmd/coracled/config"
	"github.com/coracle-project/coracle/cri"
	"github.com/coracle-project/coracle/image/imageapi"
	"github.com/coracle-project/coracle/internal/privatedir"
	"github.com/coracle-project/coracle/internal/version"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/shim/nodeapi"
)

// grace is how long calls under way may take after SIGTERM. Operations that they
// began are rolled on by the next start.
const grace = 5 * time.Second

// runDaemon serves until SIGTERM or SIGINT, and reloads s at SIGHUP. Containers stay.
func runDaemon(ctx context.Context, c config.Config, s source, respawn []string, log *slog.Logger) error {
	if err := needRoot(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// A reader of our log that goes away, or a terminal that is closed, is no
	// reason to end.
	signal.Ignore(syscall.SIGPIPE)
	hangup := make(chan os.Signal, 1) // one that comes while we start is not forgotten
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	klog.SetSlogLogger(log) // what the stream library has to say
	memory := limitMemory(log)
	defer memory.stop()

	began := time.Now()
	for _, w := range c.Warnings() {
		log.Warn("setting has an old name", "reason", w)
	}
	if err := makeDirs(c); err != nil {
		return err
	}
	release, err := lockBoth(c)
	if err != nil {
		return err
	}
	defer release()
	go loadAppArmor(ctx, c.State, log)
	n, err := startNode(ctx, c, respawn, log)
	if err != nil {
		return err
	}
	err = n.serve(ctx, memory.worked, began, hangup, s)
	return errors.Join(err, n.close())
}

// needRoot says at once what a mkdir or mount would say later in other words.
func needRoot() error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("must run as root, not as user %d", uid)
	}
	return nil
}

// makeDirs makes the two places that hold everything, for root alone.
func makeDirs(c config.Config) error {
	for _, dir := range []string{c.Root, c.State} {
		if err := privatedir.Make(dir); err != nil {
			return err
		}
	}
	return nil
}

// serve answers CRI calls until ctx ends, and reloads s at each hangup.
func (n *node) serve(ctx context.Context, worked func(), began time.Time, hangup <-chan os.Signal, s source) error {
	deps := cri.Deps{
		Pods: n.pods, Images: n.images, RuntimeReady: n.shim.Health, BuiltInNetwork: n.network.BuiltIn, Unpack: n.unpackFor,
		Spec: n.spec, Worked: worked, Log: n.log, Services: n.services,
	}
	if err := n.observe(ctx, &deps, began); err != nil {
		return err
	}
	l := *n.live.Load()
	l.edge = n.handlers(ctx, l.config.Runtime)
	n.live.Store(&l)
	server, err := cri.New(cri.Config{
		Version:       version.Number(),
		SystemdCgroup: n.config.Cgroup.Driver == "systemd",
		Handlers:      func() []cri.Handler { return n.live.Load().edge },
		ImageFS:       n.images.Root(),
		StreamAddress: n.config.Stream.Address,
		Info: func() map[string]any {
			return map[string]any{
				"config": config.Keys(n.live.Load().config), "version": version.String(), "golang": runtime.Version(), "pid": os.Getpid(),
				"shims":     n.shim.Shims(),
				"unmanaged": append([]pod.Unmanaged{}, n.pods.Unmanaged()...), // [], not null
				"bridged":   n.network.Bridged(),
				"linkGroup": n.network.LinkGroup(),
			}
		},
	}, deps)
	if err != nil {
		return err
	}
	listener, err := listen(n.config.Socket())
	if err != nil {
		server.Stop(ctx)
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	n.log.Info("ready", "version", version.Number(), "address", "unix://"+n.config.Socket(),
		"pods", len(slices.Collect(n.pods.Pods(pod.PodFilter{}))), "took", time.Since(began))
	n.tell("READY=1")
	stopWatchdog := n.watchdog(ctx)
	defer stopWatchdog()
	for ctx.Err() == nil {
		select {
		case err := <-served:
			return err
		case <-hangup:
			n.reload(ctx, s)
		case <-ctx.Done():
		}
	}
	n.log.Info("stopping; containers stay")
	n.tell("STOPPING=1")
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	server.Stop(bounded)
	return <-served
}

// services adds the services of `coracle image` and `coracle shim`.
func (n *node) services(r grpc.ServiceRegistrar) {
	nodeapi.Register(r, n.shim)
	imageapi.Register(r, imageapi.Deps{
		Images: n.images, Snapshots: n.snapshots, Containers: n.pods, Root: n.config.Root,
		State: n.config.State,
	})
}

// spec reads the OCI spec that the shim made a container from.
func (n *node) spec(c pod.Container) (json.RawMessage, error) {
	return os.ReadFile(filepath.Join(n.config.State, "containers", c.ID, "config.json"))
}
