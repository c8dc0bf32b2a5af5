package nri

import (
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// podOf is a pod as NRI has it.
func podOf(p *pod.Pod) *api.PodSandbox {
	c := &p.Config
	out := &api.PodSandbox{
		Id: p.ID, Name: c.Name, Uid: c.UID, Namespace: c.Namespace, Labels: c.Labels, Annotations: c.Annotations,
		RuntimeHandler: c.RuntimeHandler, Pid: uint32(p.Pid),
		Linux: &api.LinuxPodSandbox{
			CgroupParent: c.CgroupParent, PodOverhead: resourcesOf(c.Overhead), PodResources: resourcesOf(c.Resources),
		},
	}
	for _, ip := range p.IPs {
		out.Ips = append(out.Ips, ip.String())
	}
	if p.NetNS != "" {
		out.Linux.Namespaces = append(out.Linux.Namespaces, &api.LinuxNamespace{Type: "network", Path: p.NetNS})
	}
	return out
}

// resourcesOf is nil for nil.
func resourcesOf(r *podconfig.Resources) *api.LinuxResources {
	if r == nil {
		return nil
	}
	return &api.LinuxResources{
		Memory: &api.LinuxMemory{Limit: api.Int64(r.MemoryLimit)},
		Cpu: &api.LinuxCPU{
			Shares: api.UInt64(uint64(r.CPUShares)), Quota: api.Int64(r.CPUQuota), Period: api.UInt64(uint64(r.CPUPeriod)),
			Cpus: r.CpusetCPUs, Mems: r.CpusetMems,
		},
		Unified: r.Unified,
	}
}

// containerOf is a container as NRI has it.
func containerOf(c *plugins.Container) *api.Container {
	s := c.Spec
	out := &api.Container{
		Id: c.ID, PodSandboxId: c.PodID, Name: c.Config.Name, State: stateOf(c.State),
		Labels: c.Config.Labels, Annotations: c.Config.Annotations,
		Mounts: api.FromOCIMounts(s.Mounts), Hooks: api.FromOCIHooks(s.Hooks), Pid: uint32(c.Pid),
		CreatedAt: nanos(c.CreatedAt), StartedAt: nanos(c.StartedAt), FinishedAt: nanos(c.FinishedAt),
		ExitCode: c.ExitCode, StatusReason: c.Reason, StatusMessage: c.Message,
	}
	if p := s.Process; p != nil {
		out.Args, out.Env = p.Args, p.Env
		for _, l := range p.Rlimits {
			out.Rlimits = append(out.Rlimits, &api.POSIXRlimit{Type: l.Type, Hard: l.Hard, Soft: l.Soft})
		}
	}
	if l := s.Linux; l != nil {
		out.Linux = &api.LinuxContainer{
			Namespaces: api.FromOCILinuxNamespaces(l.Namespaces), Devices: api.FromOCILinuxDevices(l.Devices),
			Resources: api.FromOCILinuxResources(l.Resources, nil), CgroupsPath: l.CgroupsPath, Sysctl: l.Sysctl,
			NetDevices: api.FromOCILinuxNetDevices(l.NetDevices),
		}
		if l.Seccomp != nil {
			out.Linux.SeccompPolicy = api.FromOCILinuxSeccomp(l.Seccomp)
		}
		if s.Process != nil {
			out.Linux.OomScoreAdj = api.Int(s.Process.OOMScoreAdj)
			out.Linux.IoPriority = api.FromOCILinuxIOPriority(s.Process.IOPriority)
			out.Linux.Scheduler = api.FromOCILinuxScheduler(s.Process.Scheduler)
		}
	}
	return out
}

func stateOf(s pod.ContainerState) api.ContainerState {
	switch s {
	case pod.Created:
		return api.ContainerState_CONTAINER_CREATED
	case pod.Running:
		return api.ContainerState_CONTAINER_RUNNING
	case pod.Exited:
		return api.ContainerState_CONTAINER_STOPPED
	}
	return api.ContainerState_CONTAINER_UNKNOWN
}

// nanos is 0 for no time.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
