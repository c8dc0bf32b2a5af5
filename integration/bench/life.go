package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// step is what is timed.
type step string

// The steps. podStart spans RunPodSandbox, CreateContainer and StartContainer;
// teardown spans StopContainer to RemovePodSandbox.
const (
	runSandbox step = "RunPodSandbox"
	create     step = "CreateContainer"
	start      step = "StartContainer"
	podStart   step = "pod start"
	execSync   step = "ExecSync /bin/true"
	teardown   step = "stop + remove"
)

var steps = []step{runSandbox, create, start, podStart, execSync, teardown}

// marker is an argument of the payload, to tell it from a runtime's own processes.
const marker = "bench-payload"

const image = registryAddr + "/bench/payload:1"

// client drives one runtime.
type client struct {
	*testkit.CRI
	handler string
	ref     string // what PullImage returned
	seccomp *cri.SecurityProfile
	cgroup  string // parent of the pods, at the top of each hierarchy
	logs    string
	seq     int
	prefix  string
}

// pod is one pod with one container, and what its steps took in milliseconds.
type pod struct {
	id, ctr string
	logs    string
	took    map[step]float64
}

// timed runs one step.
func (p *pod) timed(s step, f func() error) error {
	begin := time.Now()
	err := f()
	p.took[s] = float64(time.Since(begin).Microseconds()) / 1000
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	return nil
}

// podConfig is a pod of that name.
func (c *client) podConfig(name string) *cri.PodSandboxConfig {
	ns := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "bench", Uid: name},
		Hostname: name, LogDirectory: filepath.Join(c.logs, name),
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: "/" + c.cgroup, SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: ns}},
	}
}

// start runs a pod with the idle payload.
func (c *client) start(ctx context.Context) (*pod, error) {
	return c.startWith(ctx, func(*cri.ContainerConfig) {})
}

// startWith runs a pod with the payload's container, modified by change.
func (c *client) startWith(ctx context.Context, change func(*cri.ContainerConfig)) (*pod, error) {
	c.seq++
	name := fmt.Sprintf("%s-%d", c.prefix, c.seq)
	p := &pod{took: map[step]float64{}, logs: filepath.Join(c.logs, name)}
	if err := os.MkdirAll(p.logs, 0o755); err != nil {
		return nil, err
	}
	config := c.podConfig(name)
	ns := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	ctr := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"}, Image: &cri.ImageSpec{Image: c.ref, UserSpecifiedImage: image}, // as the kubelet does
		Command: []string{"/pause", marker}, LogPath: "main.log",
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: ns, Seccomp: c.seccomp}},
	}
	change(ctr)
	err := p.timed(podStart, func() error {
		if err := p.timed(runSandbox, func() error {
			r, err := c.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: c.handler})
			p.id = r.GetPodSandboxId()
			return err
		}); err != nil {
			return err
		}
		if err := p.timed(create, func() error {
			r, err := c.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.id, Config: ctr, SandboxConfig: config})
			p.ctr = r.GetContainerId()
			return err
		}); err != nil {
			return err
		}
		return p.timed(start, func() error {
			_, err := c.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.ctr})
			return err
		})
	})
	return p, err
}

func (c *client) exec(ctx context.Context, p *pod) error {
	return p.timed(execSync, func() error {
		r, err := c.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: p.ctr, Cmd: []string{"/bin/true"}, Timeout: 30})
		if err == nil && r.GetExitCode() != 0 {
			err = fmt.Errorf("exit code %d: %s", r.GetExitCode(), r.GetStderr())
		}
		return err
	})
}

// grace is what StopContainer gives a container that has run for a while, in seconds. One that is stopped
// as soon as it has been started gets none: the first process of a PID namespace that has no handler yet does not
// see SIGTERM, so the grace would be what is measured.
const grace = 10

// remove makes the calls that the kubelet makes, with so many seconds of grace.
func (c *client) remove(ctx context.Context, p *pod, seconds int64) error {
	err := p.timed(teardown, func() error {
		if _, err := c.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: p.ctr, Timeout: seconds}); err != nil {
			return err
		}
		if _, err := c.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: p.ctr}); err != nil {
			return err
		}
		if _, err := c.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
			return err
		}
		_, err := c.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id})
		return err
	})
	if err != nil {
		return err
	}
	return os.RemoveAll(p.logs)
}

// life takes a pod through all steps.
func (c *client) life(ctx context.Context) (map[step]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p, err := c.start(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.exec(ctx, p); err != nil {
		return nil, err
	}
	return p.took, c.remove(ctx, p, grace)
}

// measureLatency has all runtimes up and lets them take turns.
func measureLatency(ctx context.Context, targets []*target, results []*result, o options) (err error) {
	clients := make([]*client, len(targets))
	for i, t := range targets {
		if clients[i], err = t.up(ctx); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		defer func() { err = joinDown(err, t) }()
		v, err := clients[i].Version(ctx, &cri.VersionRequest{})
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		results[i].Version = v.GetRuntimeName() + " " + v.GetRuntimeVersion()
		for range o.warm {
			if _, err := clients[i].life(ctx); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
		}
	}
	times := make([]map[step][]float64, len(targets))
	for round := range o.rounds {
		for i, t := range targets {
			if times[i] == nil {
				times[i] = map[step][]float64{}
			}
			for range o.n {
				took, err := clients[i].life(ctx)
				if err != nil {
					return fmt.Errorf("%s: %w", t.name, err)
				}
				for s, ms := range took {
					times[i][s] = append(times[i][s], ms)
				}
			}
			fmt.Fprintf(os.Stderr, "bench: round %d of %d: %s: pod start %.1f ms\n", round+1, o.rounds, t.name, quantile(times[i][podStart][round*o.n:], .5))
		}
	}
	for i := range targets {
		results[i].Latency = map[step]sample{}
		for s, all := range times[i] {
			results[i].Latency[s] = sampleOf(all)
		}
	}
	return nil
}

// sample is a series of times in milliseconds.
type sample struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func sampleOf(all []float64) sample {
	return sample{N: len(all), P50: quantile(all, .5), P99: quantile(all, .99)}
}

// quantile is the smallest value that q of all values do not exceed.
func quantile(all []float64, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
