package convert

import (
	"maps"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

var states = map[pod.ContainerState]runtimeapi.ContainerState{
	pod.Created: runtimeapi.ContainerState_CONTAINER_CREATED,
	pod.Running: runtimeapi.ContainerState_CONTAINER_RUNNING,
	pod.Exited:  runtimeapi.ContainerState_CONTAINER_EXITED,
	pod.Unknown: runtimeapi.ContainerState_CONTAINER_UNKNOWN,
}

// containerState converts a state; one that this edge does not know is unknown, not
// created, which the wire's zero value would say.
func containerState(s pod.ContainerState) runtimeapi.ContainerState {
	if wire, ok := states[s]; ok {
		return wire
	}
	return runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// ContainerMetadata are the name of a container and its attempt.
func ContainerMetadata(c *pod.Container) *runtimeapi.ContainerMetadata {
	return &runtimeapi.ContainerMetadata{Name: c.Config.Name, Attempt: c.Config.Attempt}
}

func containerImage(c *pod.Container) *runtimeapi.ImageSpec {
	return &runtimeapi.ImageSpec{Image: c.Config.Image, UserSpecifiedImage: c.Config.UserImage}
}

// imageRef is a digest reference if the image has one, else its id: the kubelet
// shows it as imageID and never expects it empty.
func imageRef(c *pod.Container) string {
	if c.ImageRef != "" {
		return c.ImageRef
	}
	return c.ImageID
}

// ContainerItem is a container in a list.
func ContainerItem(c *pod.Container) *runtimeapi.Container {
	return &runtimeapi.Container{
		Id:           c.ID,
		PodSandboxId: c.PodID,
		Metadata:     ContainerMetadata(c),
		Image:        containerImage(c),
		ImageRef:     imageRef(c),
		ImageId:      c.ImageID,
		State:        containerState(c.State),
		CreatedAt:    Nanos(c.CreatedAt),
		Labels:       c.Config.Labels,
		Annotations:  c.Config.Annotations,
	}
}

// ContainerStatus is a container's status, but for the name of its image, which only the image
// store knows.
func ContainerStatus(c *pod.Container) *runtimeapi.ContainerStatus {
	out := &runtimeapi.ContainerStatus{
		Id:          c.ID,
		Metadata:    ContainerMetadata(c),
		State:       containerState(c.State),
		CreatedAt:   Nanos(c.CreatedAt),
		StartedAt:   Nanos(c.StartedAt),
		FinishedAt:  Nanos(c.FinishedAt),
		ExitCode:    c.ExitCode,
		Image:       containerImage(c),
		ImageRef:    imageRef(c),
		ImageId:     c.ImageID,
		Reason:      c.Reason,
		Message:     c.Message,
		Labels:      c.Config.Labels,
		Annotations: c.Config.Annotations,
		LogPath:     c.LogPath,
		Resources:   &runtimeapi.ContainerResources{Linux: linuxResources(&c.Config.Resources)},
		User: &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{
			Uid: c.UID, Gid: c.GID, SupplementalGroups: c.SupplementalGroups,
		}},
		StopSignal: stopSignal(c),
	}
	for _, m := range c.Config.Mounts {
		mount := statusMount(m)
		if mount.Image != nil {
			mount.Image.ImageRef, mount.Readonly = c.VolumeRefs[m.ContainerPath], true
		}
		out.Mounts = append(out.Mounts, mount)
	}
	return out
}

func statusMount(m podconfig.Mount) *runtimeapi.Mount {
	out := &runtimeapi.Mount{
		ContainerPath:     m.ContainerPath,
		HostPath:          m.HostPath,
		Readonly:          m.Readonly,
		RecursiveReadOnly: m.RecursiveReadonly,
		SelinuxRelabel:    m.SELinuxRelabel,
		ImageSubPath:      m.ImageSubPath,
		UidMappings:       idMapsBack(m.Users.UIDs),
		GidMappings:       idMapsBack(m.Users.GIDs),
		MountOptions:      m.Options,
	}
	for wire, p := range propagations {
		if p == m.Propagation {
			out.Propagation = wire
		}
	}
	if m.Image != "" {
		out.Image = &runtimeapi.ImageSpec{Image: m.Image}
	}
	return out
}

func linuxResources(r *podconfig.Resources) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{
		CpuPeriod: r.CPUPeriod, CpuQuota: r.CPUQuota, CpuShares: r.CPUShares,
		MemoryLimitInBytes: r.MemoryLimit, MemorySwapLimitInBytes: r.MemorySwapLimit,
		OomScoreAdj: r.OOMScoreAdj,
		CpusetCpus:  r.CpusetCPUs, CpusetMems: r.CpusetMems,
		Unified: r.Unified,
	}
	for _, size := range slices.Sorted(maps.Keys(r.Hugepages)) {
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: size, Limit: r.Hugepages[size]})
	}
	return out
}
