package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestWatchdogPeriod(t *testing.T) {
	for name, tc := range map[string]struct {
		env  map[string]string
		want time.Duration
	}{
		"none":            {nil, 0},
		"ours":            {map[string]string{"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}, time.Minute},
		"without pid":     {map[string]string{"WATCHDOG_USEC": "1000000"}, time.Second},
		"another process": {map[string]string{"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "8"}, 0},
		"malformed":       {map[string]string{"WATCHDOG_USEC": "soon"}, 0},
		"negative":        {map[string]string{"WATCHDOG_USEC": "-1"}, 0},
	} {
		if got := watchdogPeriod(func(k string) string { return tc.env[k] }, 7); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// systemd gets messages as long as the daemon's probes succeed, and no longer.
func TestWatchdogNeedsAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		hangs := func() bool { return time.Since(began) >= 10*time.Minute }
		told, failed := 0, 0
		feed(ctx, 30*time.Second, func(ctx context.Context) error {
			if !hangs() {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}, func(state string) {
			if state != "WATCHDOG=1" || hangs() {
				t.Errorf("told %q after %v", state, time.Since(began))
			}
			told++
		}, func(err error) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			if failed++; failed == 3 {
				cancel()
			}
		})
		if told != 20 || failed != 3 {
			t.Errorf("told %d times, failed %d times", told, failed)
		}
	})
}

// probed is a runtime service that answers the probe, or hangs in a list.
type probed struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	hang bool
}

func (p *probed) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{}, nil
}

func (p *probed) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{}, nil
}

func (p *probed) ListContainers(ctx context.Context, _ *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	if p.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &runtimeapi.ListContainersResponse{}, nil
}

func TestWatchdogProbe(t *testing.T) {
	for _, hang := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		g := grpc.NewServer()
		runtimeapi.RegisterRuntimeServiceServer(g, &probed{hang: hang})
		served := make(chan error, 1)
		go func() { served <- g.Serve(l) }()
		limit := time.Minute
		if hang {
			limit = 100 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		if err := askSelf(ctx, path); (err != nil) != hang {
			t.Errorf("hangs %v: %v", hang, err)
		}
		cancel()
		g.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
		if err := askSelf(t.Context(), path); err == nil {
			t.Error("a daemon that does not listen passes")
		}
	}
}
