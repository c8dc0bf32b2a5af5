package main

import (
	"context"
	"math"
	"time"

	"google.golang.org/grpc"

	"github.com/coracle-project/coracle/cmd/coracled/telemetry"
	"github.com/coracle-project/coracle/cri"
	"github.com/coracle-project/coracle/internal/version"
	"github.com/coracle-project/coracle/pod"
)

// observe starts the metrics and traces that the configuration asks for, and has the edge
// feed them. They end with the node.
func (n *node) observe(ctx context.Context, deps *cri.Deps, began time.Time) error {
	if t := n.config.Tracing; t.Endpoint != "" {
		tracer, err := telemetry.StartTracing(ctx, telemetry.Tracing{
			Endpoint: t.Endpoint, Ratio: float64(t.SamplePercent) / 100, Version: version.Number(), Log: n.log,
		})
		if err != nil {
			return err
		}
		n.closers = append(n.closers, func() error {
			if err := tracer.Close(); err != nil {
				n.log.Warn("last spans not sent", "err", err) // no reason to end with an error
			}
			return nil
		})
		deps.Options = []grpc.ServerOption{tracer.ServerOption()}
	}
	if n.config.Metrics.Address == "" {
		return nil
	}
	m := telemetry.NewMetrics(version.Number())
	m.Objects(n.count)
	m.State(telemetry.State{
		Unmanaged: func() int { return len(n.pods.Unmanaged()) },
		Used: func() float64 {
			u, err := n.pods.StateUsage()
			if err != nil {
				return math.NaN()
			}
			return float64(u.Percent()) / 100
		},
	})
	pods, containers := n.count()
	m.Recovered(telemetry.Recovery{Took: time.Since(began), Pods: sum(pods), Containers: sum(containers), Errors: n.pods.RecoveryErrors()})
	server, err := telemetry.Listen(n.config.Metrics.Address, m, n.log)
	if err != nil {
		return err
	}
	n.closers = append(n.closers, server.Close)
	n.log.Info("metrics", "address", "http://"+server.Address()+"/metrics")
	deps.Called, deps.Pulled = m.Called, m.Pulled
	return nil
}

// count says how many pods and containers there are in each state.
func (n *node) count() (pods, containers map[string]int) {
	pods = map[string]int{string(pod.Ready): 0, string(pod.NotReady): 0}
	for p := range n.pods.Pods(pod.PodFilter{}) {
		pods[string(p.State)]++
	}
	containers = map[string]int{string(pod.Created): 0, string(pod.Running): 0, string(pod.Exited): 0, string(pod.Unknown): 0}
	for c := range n.pods.Containers(pod.ContainerFilter{}) {
		containers[string(c.State)]++
	}
	return pods, containers
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}
