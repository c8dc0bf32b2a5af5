package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/integration/bench/quiet"
	"github.com/coracle-project/coracle/internal/testkit"
)

// step is what is timed, in milliseconds.
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

// grace is what StopContainer gives a container that has run for a while, in seconds. One that is
// stopped as soon as it has been started gets none: the first process of a PID namespace that has
// no handler yet does not see SIGTERM, so the grace would be what is measured.
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

// warm takes pods through their lives that are not counted.
func (c *client) warm(ctx context.Context, pods int) error {
	for range pods {
		if _, err := c.life(ctx); err != nil {
			return err
		}
	}
	return quiet.Wait(ctx)
}

// measureLatency has all runtimes up and lets them take turns.
func measureLatency(ctx context.Context, targets []*target, o options) (err error) {
	for _, t := range targets {
		c, err := t.up(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		defer func() { err = joinDown(err, t) }()
		if err := c.warm(ctx, o.warm); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return inTurns(targets, o.runs, func(run int, t *target) error {
		if err := t.latency(ctx, o.n); err != nil {
			return err
		}
		if err := quiet.Wait(ctx); err != nil {
			return err
		}
		took, err := t.untilGone(ctx)
		if err != nil {
			return err
		}
		t.add("stop + remove until nothing is left, ms", took)
		t.say("run %d: pod start %.1f ms, gone in %.0f ms", run, page.Quantile(page.Values(t.figures, t.name, string(podStart)+", ms")[run-1:], .5), took)
		return quiet.Wait(ctx)
	})
}

// inTurns measures each target once per run, from 1 on. Another one begins each time, so that what
// one leaves behind for the next does not always fall on the same.
func inTurns(targets []*target, runs int, measure func(run int, t *target) error) error {
	for run := range runs {
		for i := range targets {
			t := targets[(i+run)%len(targets)]
			if err := measure(run+1, t); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
		}
	}
	return nil
}

// latency takes n pods through their lives, one after another.
func (t *target) latency(ctx context.Context, n int) error {
	times := map[step][]float64{}
	for range n {
		took, err := t.client.life(ctx)
		if err != nil {
			return err
		}
		for s, ms := range took {
			times[s] = append(times[s], ms)
		}
	}
	for _, s := range steps {
		t.add(string(s)+", ms", page.Quantile(times[s], .5))
		if s == podStart {
			t.add(fmt.Sprintf("… the slowest of %d, ms", n), page.Quantile(times[s], 1))
		}
	}
	return nil
}
