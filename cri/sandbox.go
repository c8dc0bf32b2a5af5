package cri

import (
	"context"
	"net/netip"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/convert"
	"github.com/coracle-project/coracle/cri/field"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// Sandboxes are the node's pods.
type Sandboxes interface {
	Run(ctx context.Context, c podconfig.Pod) (string, error)
	Stop(ctx context.Context, podID string) error
	Remove(ctx context.Context, podID string) error
	Pod(podID string) (pod.Pod, error)
	PodItems(f pod.PodFilter, encode func(*pod.Pod) ([]byte, error)) ([][]byte, error)
	UpdatePodResources(ctx context.Context, podID string, overhead, resources *podconfig.Resources) error
}

// RunPodSandbox makes and starts a pod.
func (s *service) RunPodSandbox(ctx context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	c, err := convert.Pod(r.GetConfig(), r.GetRuntimeHandler())
	if err != nil {
		return nil, err
	}
	id, err := s.sandboxes.Run(ctx, c)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// StopPodSandbox stops a pod's containers and frees its network.
func (s *service) StopPodSandbox(ctx context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	if err := field.Required("pod_sandbox_id", r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	if err := s.sandboxes.Stop(ctx, r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox removes a pod and all its containers.
func (s *service) RemovePodSandbox(ctx context.Context,
	r *runtimeapi.RemovePodSandboxRequest,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	if err := field.Required("pod_sandbox_id", r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	if err := s.sandboxes.Remove(ctx, r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus reports one pod and its containers from memory. A kubelet with evented PLEG
// decides by the timestamp whether this or an event is newer (KEP 3386): it is taken first, so that
// it never claims more than what was read.
func (s *service) PodSandboxStatus(_ context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	if err := field.Required("pod_sandbox_id", r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	asOf := time.Now()
	p, err := s.sandboxes.Pod(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.PodSandboxStatusResponse{
		Status: convert.PodStatus(p), ContainersStatuses: s.containerStatuses(p.ID), Timestamp: convert.Nanos(asOf),
	}
	if r.GetVerbose() {
		resp.Info, err = info(podInfo{
			PID: p.Pid, NetNS: p.NetNS, IPs: p.IPs, RuntimeHandler: p.Config.RuntimeHandler,
			Config: convert.PodBack(&p.Config), Steps: p.Steps,
		})
	}
	return resp, err
}

// podInfo is a verbose PodSandboxStatus.
type podInfo struct {
	PID            int                          `json:"pid"`
	NetNS          string                       `json:"netns"`
	IPs            []netip.Addr                 `json:"ips"`
	RuntimeHandler string                       `json:"runtimeHandler"`
	Config         *runtimeapi.PodSandboxConfig `json:"config"`
	// Steps are where the time of making the pod went, for coracle trace.
	Steps []pod.Step `json:"steps,omitempty"`
}

// UpdatePodSandboxResources notes what the kubelet has given a pod as a whole.
func (s *service) UpdatePodSandboxResources(ctx context.Context,
	r *runtimeapi.UpdatePodSandboxResourcesRequest,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if err := field.Required("pod_sandbox_id", r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	if err := s.sandboxes.UpdatePodResources(ctx, r.GetPodSandboxId(), convert.OptionalResources(r.GetOverhead()),
		convert.OptionalResources(r.GetResources())); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// listPods is ListPodSandbox (see runtimeService). It lists pods from memory.
func (s *service) listPods(r *runtimeapi.ListPodSandboxRequest) (encodedList, error) {
	return s.podItems(r.GetFilter())
}

func (s *service) podItems(f *runtimeapi.PodSandboxFilter) ([][]byte, error) {
	return s.sandboxes.PodItems(convert.PodFilter(f), func(p *pod.Pod) ([]byte, error) { return encodeItem(convert.PodItem(p)) })
}
