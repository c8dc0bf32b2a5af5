// Package usage turns what CRI says that pods and containers have used since they began into what
// they use: rates are computed from two readings, by the times at which the runtime took them.
package usage

import (
	"cmp"
	"context"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Usage is what a pod, or a container in one, uses.
type Usage struct {
	Node      string            `json:"node,omitempty"` // if the machine has several
	ID        string            `json:"id"`
	Namespace string            `json:"namespace"`
	Pod       string            `json:"pod"`
	Container string            `json:"container,omitempty"` // none: the pod as a whole
	Labels    map[string]string `json:"-"`                   // the pod's

	// CPU is in cores; nil until there are two readings.
	CPU *float64 `json:"cpuCores"`
	// Memory is the working set, which is what limits are about. MemoryLimit is nil without one.
	Memory      uint64  `json:"memoryBytes"`
	MemoryLimit *uint64 `json:"memoryLimitBytes,omitempty"`
	// Disk is the writable layer's size; a pod has the sum of its containers'.
	Disk uint64 `json:"diskBytes"`
	// Processes, Received and Sent are of pods; bytes per second, of all interfaces but loopback.
	Processes uint64   `json:"processes,omitempty"`
	Received  *float64 `json:"receivedBytesPerSecond,omitempty"`
	Sent      *float64 `json:"sentBytesPerSecond,omitempty"`
}

// counter is a number that only grows, when it was read.
type counter struct {
	at    int64 // Unix nanoseconds
	value uint64
}

// rate is the growth per second since an earlier reading; nil if that says nothing.
func (c counter) rate(before counter) *float64 {
	if before.at == 0 || c.at <= before.at || c.value < before.value {
		return nil
	}
	r := float64(c.value-before.value) / time.Duration(c.at-before.at).Seconds()
	return &r
}

// counters is what rates are computed from, by the id of a pod or container.
type counters struct{ cpu, received, sent counter }

// Meter remembers the last reading. The zero value has none.
type Meter struct{ last map[string]counters }

// Read asks for everything with one call. Each pod is followed by its containers; both are in the
// order of their names.
func (m *Meter) Read(ctx context.Context, c runtimeapi.RuntimeServiceClient) ([]Usage, error) {
	r, err := c.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil {
		return nil, err
	}
	return m.take(r.GetStats()), nil
}

func (m *Meter) take(stats []*runtimeapi.PodSandboxStats) []Usage {
	now := map[string]counters{}
	all := []Usage{}
	for _, s := range stats {
		pod := m.pod(s, now)
		containers := make([]Usage, 0, len(s.GetLinux().GetContainers()))
		for _, c := range s.GetLinux().GetContainers() {
			u := m.container(c, now)
			u.Namespace, u.Pod, u.Labels = pod.Namespace, pod.Pod, pod.Labels
			pod.Disk += u.Disk
			containers = append(containers, u)
		}
		all = append(append(all, pod), containers...)
	}
	m.last = now
	slices.SortStableFunc(all, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
	})
	return all
}

func (m *Meter) pod(s *runtimeapi.PodSandboxStats, now map[string]counters) Usage {
	id, l := s.GetAttributes().GetId(), s.GetLinux()
	n := counters{cpu: cpu(l.GetCpu())}
	for _, i := range append([]*runtimeapi.NetworkInterfaceUsage{l.GetNetwork().GetDefaultInterface()}, l.GetNetwork().GetInterfaces()...) {
		if i.GetName() == "lo" {
			continue
		}
		n.received.value += i.GetRxBytes().GetValue()
		n.sent.value += i.GetTxBytes().GetValue()
	}
	n.received.at, n.sent.at = l.GetNetwork().GetTimestamp(), l.GetNetwork().GetTimestamp()
	now[id] = n
	before := m.last[id]
	u := Usage{
		ID: id, Namespace: s.GetAttributes().GetMetadata().GetNamespace(), Pod: s.GetAttributes().GetMetadata().GetName(),
		Labels: s.GetAttributes().GetLabels(), CPU: cores(n.cpu.rate(before.cpu)), Processes: l.GetProcess().GetProcessCount().GetValue(),
		Received: n.received.rate(before.received), Sent: n.sent.rate(before.sent),
	}
	u.Memory, u.MemoryLimit = memory(l.GetMemory())
	return u
}

func (m *Meter) container(s *runtimeapi.ContainerStats, now map[string]counters) Usage {
	id := s.GetAttributes().GetId()
	n := counters{cpu: cpu(s.GetCpu())}
	now[id] = n
	u := Usage{
		ID: id, Container: s.GetAttributes().GetMetadata().GetName(), CPU: cores(n.cpu.rate(m.last[id].cpu)),
		Disk: s.GetWritableLayer().GetUsedBytes().GetValue(),
	}
	u.Memory, u.MemoryLimit = memory(s.GetMemory())
	return u
}

// cpu counts the seconds of one core in nanoseconds.
func cpu(u *runtimeapi.CpuUsage) counter {
	return counter{u.GetTimestamp(), u.GetUsageCoreNanoSeconds().GetValue()}
}

// cores makes cores of nanoseconds per second.
func cores(rate *float64) *float64 {
	if rate == nil {
		return nil
	}
	c := *rate / 1e9
	return &c
}

func memory(u *runtimeapi.MemoryUsage) (used uint64, limit *uint64) {
	used = u.GetWorkingSetBytes().GetValue()
	if a := u.GetAvailableBytes(); a != nil {
		sum := used + a.GetValue()
		limit = &sum
	}
	return used, limit
}
