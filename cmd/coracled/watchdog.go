package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// watchdog tells systemd that the daemon works (WATCHDOG=1, sd_notify(3)) as long as the daemon
// answers calls on its own socket. systemd restarts a daemon that does not. stop ends the watchdog.
func (n *node) watchdog(ctx context.Context) (stop func()) {
	period := watchdogPeriod(os.Getenv, os.Getpid())
	if period == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// Probe twice per period, as sd_watchdog_enabled(3) advises.
		feed(ctx, period/2, func(ctx context.Context) error { return askSelf(ctx, n.config.Socket()) }, n.tell, func(err error) {
			n.log.Error("daemon does not answer itself; systemd will restart it", "err", err)
		})
	}()
	return func() {
		cancel()
		<-ended
	}
}

// watchdogPeriod is the time within which systemd expects a message from this process; 0 if it
// expects none.
func watchdogPeriod(env func(string) string, self int) time.Duration {
	if pid := env("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(self) {
		return 0
	}
	usec, err := strconv.ParseInt(env("WATCHDOG_USEC"), 10, 64)
	if err != nil || usec <= 0 || usec > int64(24*time.Hour/time.Microsecond) {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}

// feed notifies systemd after each successful probe, until ctx ends.
func feed(ctx context.Context, every time.Duration, probe func(context.Context) error, tell func(string), failed func(error)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, every)
		err := probe(bounded)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failed(err)
		default:
			tell("WATCHDOG=1")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// askSelf makes calls that the kubelet needs and that depend only on the daemon: they show that the
// server accepts and answers, and that the tables of pods and containers can be read. A shim that
// hangs does not fail them.
func askSelf(ctx context.Context, socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("call own socket %s: %w", socket, err)
	}
	defer func() { _ = conn.Close() }()
	c := runtimeapi.NewRuntimeServiceClient(conn)
	if _, err := c.Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
		return fmt.Errorf("call own socket %s: %w", socket, err)
	}
	// No pod has this id, so the answers are short.
	const none = "watchdog"
	if _, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: none}}); err != nil {
		return fmt.Errorf("call own socket %s: %w", socket, err)
	}
	if _, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: none}}); err != nil {
		return fmt.Errorf("call own socket %s: %w", socket, err)
	}
	return nil
}
