package cri

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// Pod returns all that the runtime has of a pod: its sandboxes and containers, newest first, dead
// ones too. What disappears while it looks is left out. A pod of which nothing is left is an empty
// status, not an error.
func (c *Client) Pod(ctx context.Context, uid types.UID) (*kubecontainer.PodStatus, error) {
	name, err := c.RuntimeName(ctx)
	if err != nil {
		return nil, err
	}
	selector := map[string]string{kubelettypes.KubernetesPodUIDLabel: string(uid)}
	sandboxes, err := c.Runtime.ListPodSandbox(ctx,
		&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: selector}})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes of pod %s: %w", uid, err)
	}
	containers, err := c.Runtime.ListContainers(ctx,
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: selector}})
	if err != nil {
		return nil, fmt.Errorf("list containers of pod %s: %w", uid, err)
	}
	p := &kubecontainer.PodStatus{ID: uid, TimeStamp: time.Now()}
	slices.SortFunc(sandboxes.Items, func(a, b *runtimeapi.PodSandbox) int { return int(b.CreatedAt - a.CreatedAt) })
	active := ""
	for i, s := range sandboxes.Items {
		p.Name, p.Namespace = s.GetMetadata().GetName(), s.GetMetadata().GetNamespace()
		status, err := c.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.Id})
		if NotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("status of sandbox %s: %w", s.Id, err)
		}
		p.SandboxStatuses = append(p.SandboxStatuses, status.Status)
		if i == 0 && status.Status.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			active = s.Id
			p.IPs = sandboxIPs(status.Status)
		}
	}
	for _, item := range containers.Containers {
		resp, err := c.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: item.Id})
		if NotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("status of container %s: %w", item.Id, err)
		}
		status := containerStatus(name, resp.Status)
		p.ContainerStatuses = append(p.ContainerStatuses, status)
		if item.PodSandboxId == active {
			p.ActiveContainerStatuses = append(p.ActiveContainerStatuses, status)
		}
	}
	newestFirst := func(a, b *kubecontainer.Status) int { return b.CreatedAt.Compare(a.CreatedAt) }
	slices.SortStableFunc(p.ContainerStatuses, newestFirst)
	slices.SortStableFunc(p.ActiveContainerStatuses, newestFirst)
	return p, nil
}

// NotFound says whether err is CRI's word for a sandbox, container or image that is not there.
func NotFound(err error) bool { return grpcstatus.Code(err) == codes.NotFound }

// Message is an error's text without gRPC's envelope, as statuses and events show it.
func Message(err error) string { return grpcstatus.Convert(err).Message() }

func sandboxIPs(s *runtimeapi.PodSandboxStatus) []string {
	if s.GetNetwork().GetIp() == "" {
		return nil
	}
	ips := []string{s.Network.Ip}
	for _, ip := range s.Network.AdditionalIps {
		ips = append(ips, ip.Ip)
	}
	return ips
}

func containerStatus(runtimeName string, s *runtimeapi.ContainerStatus) *kubecontainer.Status {
	imageID := s.ImageId
	if imageID == "" {
		imageID = s.ImageRef
	}
	hash, _ := strconv.ParseUint(s.Annotations[annotationHash], 16, 64)
	restarts, _ := strconv.Atoi(s.Annotations[annotationRestartCount])
	c := &kubecontainer.Status{
		ID:                  kubecontainer.ContainerID{Type: runtimeName, ID: s.Id},
		Name:                s.Labels[kubelettypes.KubernetesContainerNameLabel],
		Image:               s.GetImage().GetImage(),
		ImageID:             imageID,
		ImageRef:            s.ImageRef,
		ImageRuntimeHandler: s.GetImage().GetRuntimeHandler(),
		Hash:                hash,
		RestartCount:        restarts,
		State:               containerState(s.State),
		CreatedAt:           time.Unix(0, s.CreatedAt),
		Resources:           containerResources(s.GetResources().GetLinux()),
		User:                containerUser(s.GetUser().GetLinux()),
		Mounts:              imageMounts(s.Mounts),
	}
	if s.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		c.StartedAt = time.Unix(0, s.StartedAt)
	}
	if s.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		c.Reason, c.Message, c.ExitCode = s.Reason, s.Message, int(s.ExitCode)
		c.FinishedAt = time.Unix(0, s.FinishedAt)
		if m := terminationMessage(s); m != "" {
			if c.Message != "" {
				c.Message += ": "
			}
			c.Message += m
		}
	}
	return c
}

// imageMounts are the mounts that are images; no one asks for others.
func imageMounts(all []*runtimeapi.Mount) (mounts []kubecontainer.Mount) {
	for _, m := range all {
		if m.Image != nil {
			mounts = append(mounts, kubecontainer.Mount{ContainerPath: m.ContainerPath, ReadOnly: m.Readonly, Image: m.Image})
		}
	}
	return mounts
}

func containerState(s runtimeapi.ContainerState) kubecontainer.State {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return kubecontainer.ContainerStateCreated
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return kubecontainer.ContainerStateRunning
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return kubecontainer.ContainerStateExited
	default:
		return kubecontainer.ContainerStateUnknown
	}
}

// containerResources is the way back from cgroup figures to quantities. What the runtime does not
// say stays nil; a memory request has no cgroup figure at all.
func containerResources(l *runtimeapi.LinuxContainerResources) *kubecontainer.ContainerResources {
	if l == nil {
		return nil
	}
	r := &kubecontainer.ContainerResources{}
	if l.CpuShares > 0 {
		r.CPURequest = resource.NewMilliQuantity((l.CpuShares*1000+1023)/1024, resource.DecimalSI)
	}
	if l.CpuQuota > 0 && l.CpuPeriod > 0 {
		r.CPULimit = resource.NewMilliQuantity(l.CpuQuota*1000/l.CpuPeriod, resource.DecimalSI)
	}
	if l.MemoryLimitInBytes > 0 {
		r.MemoryLimit = resource.NewQuantity(l.MemoryLimitInBytes, resource.BinarySI)
	}
	return r
}

func containerUser(u *runtimeapi.LinuxContainerUser) *kubecontainer.ContainerUser {
	if u == nil {
		return nil
	}
	return &kubecontainer.ContainerUser{Linux: &kubecontainer.LinuxContainerUser{
		UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups,
	}}
}

// fallsBackToLogs says whether the container asked for its last lines as its message, and is one
// that can have written any.
func fallsBackToLogs(s *runtimeapi.ContainerStatus) bool {
	return v1.TerminationMessagePolicy(s.Annotations[annotationMessagePolicy]) == v1.TerminationMessageFallbackToLogsOnError &&
		s.ExitCode != 0 && s.Reason != "ContainerCannotRun"
}

// Container returns what the runtime has of one container.
func (c *Client) Container(ctx context.Context, id string) (*kubecontainer.Status, error) {
	name, err := c.RuntimeName(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := c.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return nil, fmt.Errorf("status of container %s: %w", id, err)
	}
	return containerStatus(name, resp.Status), nil
}
