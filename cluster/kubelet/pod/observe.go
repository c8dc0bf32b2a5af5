package pod

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/kubelet/probe"
)

// observer is what the runtime was last seen to have of one pod.
type observer struct {
	cri    *cri.Client
	uid    types.UID
	status *kubecontainer.PodStatus // replaced, never changed
}

// all asks for all of the pod.
func (o *observer) all(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := o.cri.Pod(ctx, o.uid)
	if err != nil {
		return err
	}
	o.status = s
	return nil
}

// look takes a container that was made or changed into what was observed.
func (o *observer) look(ctx context.Context, id string) {
	s, err := o.cri.Container(ctx, id)
	if err != nil {
		return // the next look at the whole pod tells
	}
	n := *o.status
	replace := func(all []*kubecontainer.Status) []*kubecontainer.Status {
		kept := []*kubecontainer.Status{s}
		for _, other := range all {
			if other.ID.ID != id {
				kept = append(kept, other)
			}
		}
		return kept
	}
	n.ContainerStatuses = replace(n.ContainerStatuses)
	n.ActiveContainerStatuses = replace(n.ActiveContainerStatuses)
	o.status = &n
}

// sandbox takes a sandbox that was made into what was observed.
func (o *observer) sandbox(s *runtimeapi.PodSandboxStatus) {
	n := *o.status
	n.SandboxStatuses = append([]*runtimeapi.PodSandboxStatus{s}, o.status.SandboxStatuses...)
	n.ActiveContainerStatuses = nil
	n.IPs = nil
	if ip := s.GetNetwork().GetIp(); ip != "" {
		n.IPs = append(n.IPs, ip)
		for _, more := range s.Network.AdditionalIps {
			n.IPs = append(n.IPs, more.Ip)
		}
	}
	o.status = &n
}

// probing has the containers of one pod probed.
type probing struct {
	probes *probe.Manager
	uid    types.UID
	seeded bool // probes know what was known before the kubelet was restarted
}

// keep sees to it that the containers that run are probed, and no others.
func (p *probing) keep(pod *v1.Pod, observed *kubecontainer.PodStatus, ip string) {
	var ids []string
	for _, s := range observed.ContainerStatuses {
		if s.State != kubecontainer.ContainerStateRunning {
			continue
		}
		ids = append(ids, s.ID.ID)
		spec := kubecontainer.GetContainerSpec(pod, s.Name)
		if spec == nil {
			continue
		}
		p.probes.Watch(probe.Target{Pod: pod, Container: spec, ID: s.ID.ID, PodIP: ip, StartedAt: s.StartedAt})
		if !p.seeded {
			p.seed(pod, s)
		}
	}
	p.seeded = true
	p.probes.Keep(p.uid, ids...)
}

// seed tells probes what the API knows of a container that ran before this process did.
func (p *probing) seed(pod *v1.Pod, s *kubecontainer.Status) {
	for _, all := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		c, ok := podutil.GetContainerStatus(all, s.Name)
		if !ok || c.ContainerID != s.ID.String() {
			continue
		}
		if c.Started != nil && *c.Started {
			p.probes.Seed(s.ID.ID, probe.Startup, probe.Success)
		}
		if c.Ready {
			p.probes.Seed(s.ID.ID, probe.Readiness, probe.Success)
		}
	}
}
