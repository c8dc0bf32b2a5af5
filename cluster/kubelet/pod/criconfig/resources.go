package criconfig

import (
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	v1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
	"k8s.io/kubernetes/pkg/kubelet/qos"

	"github.com/coracle-project/coracle/cluster/kubelet/cgroups"
)

// ContainerResources is what a container asked for in cgroup figures.
func (m *Maker) ContainerResources(pod *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	limits := c.Resources.Limits
	cpu, memory := limits.Cpu(), limits.Memory()
	if resourcehelper.IsPodLevelResourcesSet(pod) { // a pod's limit is that of each container without one
		if cpu.IsZero() {
			cpu = pod.Spec.Resources.Limits.Cpu()
		}
		if memory.IsZero() {
			memory = pod.Spec.Resources.Limits.Memory()
		}
	}
	l := linuxResources(requestOf(c.Resources.Requests), cpu, memory)
	l.OomScoreAdj = int64(qos.GetContainerOOMScoreAdjust(pod, c, m.MemoryCapacity))
	l.HugepageLimits = hugepages(c.Resources)
	l.Unified = m.Cgroups.Container()
	return l
}

// podResources sums up what the pod asked for, overhead left out.
func podResources(pod *v1.Pod) *runtimeapi.LinuxContainerResources {
	options := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	limits := resourcehelper.PodLimits(pod, options)
	return linuxResources(requestOf(resourcehelper.PodRequests(pod, options)), limits.Cpu(), limits.Memory())
}

func overhead(pod *v1.Pod) *runtimeapi.LinuxContainerResources {
	if pod.Spec.Overhead == nil {
		return &runtimeapi.LinuxContainerResources{}
	}
	cpu := pod.Spec.Overhead.Cpu()
	return linuxResources(cpu, cpu, pod.Spec.Overhead.Memory())
}

// requestOf returns the CPU request, nil if there is none.
func requestOf(list v1.ResourceList) *resource.Quantity {
	if q, ok := list[v1.ResourceCPU]; ok {
		return &q
	}
	return nil
}

// linuxResources turns quantities into cgroup figures. No request means as much as the limit; no
// limit is no quota.
func linuxResources(request, limit, memory *resource.Quantity) *runtimeapi.LinuxContainerResources {
	if request == nil {
		request = limit
	}
	return &runtimeapi.LinuxContainerResources{
		CpuShares:          cgroups.Shares(request.MilliValue()),
		CpuPeriod:          cgroups.Period,
		CpuQuota:           cgroups.Quota(limit.MilliValue()),
		MemoryLimitInBytes: memory.Value(),
	}
}

// hugepages returns a limit for each size of huge pages that the kernel has, 0 where none is asked
// for: otherwise a container could take all.
func hugepages(r v1.ResourceRequirements) []*runtimeapi.HugepageLimit {
	asked := map[string]uint64{}
	for name, q := range r.Limits {
		if !v1helper.IsHugePageResourceName(name) {
			continue
		}
		size, err := v1helper.HugePageSizeFromResourceName(name)
		if err != nil {
			continue
		}
		asked[pageSize(size.Value())] = uint64(q.Value())
	}
	var limits []*runtimeapi.HugepageLimit
	for _, size := range cgroups.HugePageSizes() {
		limits = append(limits, &runtimeapi.HugepageLimit{PageSize: size, Limit: asked[size]})
	}
	return limits
}

// pageSize writes a size as cgroup files do: 2MB, 1GB.
func pageSize(bytes int64) string {
	const units = "KMGT"
	i := -1
	for bytes >= 1024 && bytes%1024 == 0 && i < len(units)-1 {
		bytes /= 1024
		i++
	}
	var b strings.Builder
	b.WriteString(strconv.FormatInt(bytes, 10))
	if i >= 0 {
		b.WriteByte(units[i])
	}
	b.WriteByte('B')
	return b.String()
}
