package pod

import (
	"context"
	"log/slog"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/coracle-project/coracle/cluster/kubelet/cgroups"
)

// resize gives running containers the resources that the pod's spec says now. It returns whether it
// changed any.
func (w *worker) resize(ctx context.Context, pod *v1.Pod) (resized bool) {
	for _, s := range w.observed.ContainerStatuses {
		c := kubecontainer.GetContainerSpec(pod, s.Name)
		if s.State != kubecontainer.ContainerStateRunning || c == nil || !resizable(pod, c) {
			continue
		}
		want := w.r.containerResources(pod, c)
		if !outgrown(want, s.Resources) {
			continue
		}
		if err := w.r.Cgroups.Ensure(pod); err != nil {
			slog.Warn("resize a pod's cgroup", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		}
		_, err := w.r.CRI.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: s.ID.ID, Linux: want})
		if err != nil {
			slog.Warn("resize a container", "container", s.ID.ID, "err", err)
			continue
		}
		resized = true
		w.look(ctx, s.ID.ID)
	}
	return resized
}

// resizable says whether a container's resources can be changed while it runs: init containers that
// run once keep theirs.
func resizable(pod *v1.Pod, c *v1.Container) bool {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			return podutil.IsRestartableInitContainer(c)
		}
	}
	return true
}

// outgrown says whether a container's cgroup differs from what is wanted. What the runtime does not
// tell is not compared, and a limit that is no longer wanted stays.
func outgrown(want *runtimeapi.LinuxContainerResources, have *kubecontainer.ContainerResources) bool {
	if have == nil {
		return false
	}
	if q := have.CPURequest; q != nil && cgroups.Shares(q.MilliValue()) != want.CpuShares {
		return true
	}
	if q := have.CPULimit; q != nil && want.CpuQuota != 0 && cgroups.Quota(q.MilliValue()) != want.CpuQuota {
		return true
	}
	q := have.MemoryLimit
	return q != nil && want.MemoryLimitInBytes != 0 && q.Value() != want.MemoryLimitInBytes
}
