// Command nriplugin is an NRI plugin for tests, on NRI's own stub. Its configuration is the path of
// a file, to which it appends a line for each thing that it is told. It gives each container an
// environment variable, a mount and a limit of open files, makes each update's memory limit twice
// as large, and refuses containers with the annotation "boat.refused".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

type plugin struct{ journal string }

func main() {
	late := flag.String("late", "", "connect by oneself, and append to this `file`")
	socket := flag.String("socket", "", "where to connect")
	flag.Parse()
	var opts []stub.Option
	if *late != "" {
		opts = []stub.Option{stub.WithPluginName("late"), stub.WithPluginIdx("20"), stub.WithSocketPath(*socket)}
	}
	s, err := stub.New(&plugin{*late}, opts...)
	if err == nil {
		err = s.Run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nriplugin:", err)
		os.Exit(1)
	}
}

func (p *plugin) note(what string, names ...string) error {
	f, err := os.OpenFile(p.journal, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, what, names)
	return errors.Join(err, f.Close())
}

func (p *plugin) Configure(_ context.Context, config, runtime, version string) (api.EventMask, error) {
	if p.journal == "" {
		p.journal = config
	}
	return 0, p.note("configure", runtime)
}

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	return nil, p.note("synchronize", fmt.Sprint(len(pods)), fmt.Sprint(len(containers)))
}

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	if len(pod.GetIps()) == 0 || pod.GetLinux().GetNamespaces() == nil {
		return errors.New("a pod without address or namespace")
	}
	return p.note("run", pod.GetName())
}

func (p *plugin) UpdatePodSandbox(_ context.Context, pod *api.PodSandbox, overhead, resources *api.LinuxResources) error {
	if resources.GetMemory().GetLimit().GetValue() == 77 {
		return errors.New("too small for a boat")
	}
	return p.note("update pod", pod.GetName(), fmt.Sprint(overhead.GetMemory().GetLimit().GetValue()),
		fmt.Sprint(resources.GetMemory().GetLimit().GetValue()))
}

func (p *plugin) PostUpdatePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("updated pod", pod.GetName(), fmt.Sprint(pod.GetLinux().GetPodResources().GetMemory().GetLimit().GetValue()))
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("stop", pod.GetName())
}

func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("remove", pod.GetName())
}

func (p *plugin) CreateContainer(_ context.Context, pod *api.PodSandbox,
	c *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if c.GetAnnotations()["boat.refused"] != "" {
		return nil, nil, errors.New("no such boat here")
	}
	a := &api.ContainerAdjustment{}
	a.AddEnv("BOAT", "coracle")
	a.AddMount(&api.Mount{Source: "/proc/version", Destination: "/boat", Type: "bind", Options: []string{"bind", "ro"}})
	a.AddRlimit("RLIMIT_NOFILE", 77, 77)
	a.SetLinuxMemoryLimit(48 << 20)
	return a, nil, p.note("create", pod.GetName(), c.GetName())
}

func (p *plugin) PostCreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note("created", c.GetName())
}

func (p *plugin) StartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note("start", c.GetName())
}

func (p *plugin) PostStartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note("started", c.GetName())
}

func (p *plugin) UpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container,
	r *api.LinuxResources,
) ([]*api.ContainerUpdate, error) {
	u := &api.ContainerUpdate{ContainerId: c.GetId()}
	u.SetLinuxMemoryLimit(2 * r.GetMemory().GetLimit().GetValue())
	return []*api.ContainerUpdate{u}, p.note("update", c.GetName())
}

func (p *plugin) PostUpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note("updated", c.GetName())
}

func (p *plugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, p.note("stopped", c.GetName(), fmt.Sprint(c.GetExitCode()))
}

func (p *plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note("removed", c.GetName())
}
