package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

// stats collects figures when they are asked for, and at no other time: of containers and pods from
// the runtime, of the node from the kernel.
type stats struct {
	host    Host
	runtime *cri.Client
	opts    Options

	// mu guards last, the node's CPU time when it was last asked for, which makes its rate.
	mu   sync.Mutex
	last statsapi.CPUStats
}

func newStats(host Host, runtime *cri.Client, opts Options) *stats {
	return &stats{host: host, runtime: runtime, opts: opts}
}

// scope is how much of the figures is wanted.
type scope int

// What Summary may be asked for.
const (
	// cpuAndMemory leaves out what takes longer to find out.
	cpuAndMemory scope = iota
	everything
)

// Usage returns what pods and the node use of CPU and memory now, for callers in this process.
func (s *Server) Usage(ctx context.Context) (*statsapi.Summary, error) {
	return s.stats.summary(ctx, cpuAndMemory)
}

func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	want := everything
	if r.URL.Query().Get("only_cpu_and_memory") == "true" {
		want = cpuAndMemory
	}
	summary, err := s.stats.summary(r.Context(), want)
	if err != nil {
		fail(w, http.StatusInternalServerError, fmt.Sprintf("Internal Error: %v", err))
		return
	}
	writeJSON(w, summary)
}

func (s *stats) summary(ctx context.Context, want scope) (*statsapi.Summary, error) {
	pods, err := s.pods(ctx, want)
	if err != nil {
		return nil, fmt.Errorf("failed to list pod stats: %w", err)
	}
	node, err := s.node(ctx, want)
	if err != nil {
		return nil, err
	}
	return &statsapi.Summary{Node: *node, Pods: pods}, nil
}

// node is what the whole machine uses.
func (s *stats) node(ctx context.Context, want scope) (*statsapi.NodeStats, error) {
	m, err := readMachine(time.Now())
	if err != nil {
		return nil, fmt.Errorf("failed to get root cgroup stats: %w", err)
	}
	node := &statsapi.NodeStats{
		NodeName: s.opts.NodeName, StartTime: metav1.NewTime(m.booted),
		CPU: m.cpu, Memory: m.memory, Swap: m.swap, SystemContainers: []statsapi.ContainerStats{},
	}
	s.mu.Lock()
	if passed := node.CPU.Time.Sub(s.last.Time.Time); s.last.UsageCoreNanoSeconds != nil && passed >= time.Second {
		used := *node.CPU.UsageCoreNanoSeconds - min(*s.last.UsageCoreNanoSeconds, *node.CPU.UsageCoreNanoSeconds)
		rate := uint64(float64(used) / passed.Seconds())
		node.CPU.UsageNanoCores = &rate
	}
	if node.CPU.UsageNanoCores != nil || s.last.UsageCoreNanoSeconds == nil {
		s.last = *node.CPU
	} else {
		node.CPU.UsageNanoCores = s.last.UsageNanoCores
	}
	s.mu.Unlock()
	if want == cpuAndMemory {
		return node, nil
	}
	node.Network, node.Rlimit = m.network, m.rlimit
	if s.opts.RootDir != "" {
		if node.Fs, err = fileSystem(s.opts.RootDir); err != nil {
			return nil, fmt.Errorf("failed to get rootFs stats: %w", err)
		}
	}
	if node.Runtime, err = s.images(ctx); err != nil {
		return nil, fmt.Errorf("failed to get imageFs stats: %w", err)
	}
	return node, nil
}

// images is what the runtime's files take.
func (s *stats) images(ctx context.Context) (*statsapi.RuntimeStats, error) {
	info, err := s.runtime.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return nil, err
	}
	of := func(list []*runtimeapi.FilesystemUsage) *statsapi.FsStats {
		if len(list) == 0 {
			return nil
		}
		// The runtime may have its files where this process cannot look; then only what it says is
		// told.
		fs, err := fileSystem(list[0].GetFsId().GetMountpoint())
		if err != nil {
			fs = &statsapi.FsStats{Time: at(list[0].Timestamp)}
		}
		fs.UsedBytes, fs.InodesUsed = number(list[0].UsedBytes), number(list[0].InodesUsed)
		return fs
	}
	return &statsapi.RuntimeStats{ImageFs: of(info.ImageFilesystems), ContainerFs: of(info.ContainerFilesystems)}, nil
}

// pods is what each pod of this kubelet uses, by namespace and name.
func (s *stats) pods(ctx context.Context, want scope) ([]statsapi.PodStats, error) {
	containers, err := s.runtime.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil {
		return nil, err
	}
	byPod := map[string][]*runtimeapi.ContainerStats{}
	for _, c := range containers.Stats {
		uid := c.GetAttributes().GetLabels()[kubelettypes.KubernetesPodUIDLabel]
		byPod[uid] = append(byPod[uid], c)
	}
	// Runtimes need not know a pod's own figures; its containers' sum is nearly the same.
	own := map[string]*runtimeapi.LinuxPodSandboxStats{}
	if answer, err := s.runtime.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{}); err == nil {
		for _, p := range answer.Stats {
			own[p.GetAttributes().GetMetadata().GetUid()] = p.Linux
		}
	}
	list := []statsapi.PodStats{}
	for _, pod := range s.host.Pods() {
		uid := string(pod.UID)
		if len(byPod[uid]) == 0 && own[uid] == nil {
			continue
		}
		p := podStats(pod, byPod[uid], own[uid], want)
		if want == everything && s.opts.Volumes != nil {
			p.VolumeStats = s.opts.Volumes(ctx, pod)
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b statsapi.PodStats) int {
		return strings.Compare(a.PodRef.Namespace+"/"+a.PodRef.Name, b.PodRef.Namespace+"/"+b.PodRef.Name)
	})
	return list, nil
}

func podStats(pod *v1.Pod, containers []*runtimeapi.ContainerStats, own *runtimeapi.LinuxPodSandboxStats, want scope) statsapi.PodStats {
	p := statsapi.PodStats{
		PodRef:     statsapi.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)},
		Containers: []statsapi.ContainerStats{},
	}
	if pod.Status.StartTime != nil {
		p.StartTime = *pod.Status.StartTime
	}
	started := map[string]metav1.Time{}
	for _, list := range [][]v1.ContainerStatus{
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
		pod.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if running := list[i].State.Running; running != nil {
				started[list[i].Name] = running.StartedAt
			}
		}
	}
	newest := map[string]*runtimeapi.ContainerStats{}
	for _, c := range containers {
		name := c.GetAttributes().GetMetadata().GetName()
		if old := newest[name]; old == nil || old.GetAttributes().GetMetadata().GetAttempt() < c.GetAttributes().GetMetadata().GetAttempt() {
			newest[name] = c
		}
	}
	for name, c := range newest {
		start, running := started[name]
		if !running {
			continue // what has ended uses nothing
		}
		stats := statsapi.ContainerStats{Name: name, StartTime: start, CPU: cpu(c.Cpu), Memory: memory(c.Memory), Swap: swap(c.Swap)}
		if want == everything && c.WritableLayer != nil {
			stats.Rootfs = &statsapi.FsStats{
				Time: at(c.WritableLayer.Timestamp), UsedBytes: number(c.WritableLayer.UsedBytes),
				InodesUsed: number(c.WritableLayer.InodesUsed),
			}
		}
		p.Containers = append(p.Containers, stats)
	}
	slices.SortFunc(p.Containers, func(a, b statsapi.ContainerStats) int { return strings.Compare(a.Name, b.Name) })
	p.CPU, p.Memory = cpu(own.GetCpu()), memory(own.GetMemory())
	if p.CPU == nil {
		p.CPU = sumCPU(p.Containers)
	}
	if p.Memory == nil {
		p.Memory = sumMemory(p.Containers)
	}
	if want == everything {
		p.Network = network(own.GetNetwork())
		if n := number(own.GetProcess().GetProcessCount()); n != nil {
			p.ProcessStats = &statsapi.ProcessStats{ProcessCount: n}
		}
	}
	return p
}

func at(nanoseconds int64) metav1.Time { return metav1.NewTime(time.Unix(0, nanoseconds)) }

func number(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	return &v.Value
}

func cpu(u *runtimeapi.CpuUsage) *statsapi.CPUStats {
	if u.GetUsageCoreNanoSeconds() == nil {
		return nil
	}
	return &statsapi.CPUStats{
		Time: at(u.Timestamp), UsageCoreNanoSeconds: number(u.UsageCoreNanoSeconds),
		UsageNanoCores: number(u.UsageNanoCores),
	}
}

func memory(u *runtimeapi.MemoryUsage) *statsapi.MemoryStats {
	if u.GetWorkingSetBytes() == nil {
		return nil
	}
	return &statsapi.MemoryStats{
		Time: at(u.Timestamp), AvailableBytes: number(u.AvailableBytes), UsageBytes: number(u.UsageBytes),
		WorkingSetBytes: number(u.WorkingSetBytes),
		RSSBytes:        number(u.RssBytes), PageFaults: number(u.PageFaults), MajorPageFaults: number(u.MajorPageFaults),
	}
}

func swap(u *runtimeapi.SwapUsage) *statsapi.SwapStats {
	if u == nil {
		return nil
	}
	return &statsapi.SwapStats{
		Time: at(u.Timestamp), SwapAvailableBytes: number(u.SwapAvailableBytes),
		SwapUsageBytes: number(u.SwapUsageBytes),
	}
}

func network(u *runtimeapi.NetworkUsage) *statsapi.NetworkStats {
	if u == nil {
		return nil
	}
	of := func(i *runtimeapi.NetworkInterfaceUsage) statsapi.InterfaceStats {
		return statsapi.InterfaceStats{
			Name:    i.GetName(),
			RxBytes: number(i.GetRxBytes()), RxErrors: number(i.GetRxErrors()), TxBytes: number(i.GetTxBytes()), TxErrors: number(i.GetTxErrors()),
		}
	}
	n := &statsapi.NetworkStats{Time: at(u.Timestamp), InterfaceStats: of(u.DefaultInterface)}
	for _, i := range u.Interfaces {
		n.Interfaces = append(n.Interfaces, of(i))
	}
	return n
}

// add adds what is known of b to a.
func add(a **uint64, b *uint64) {
	if b == nil {
		return
	}
	if *a == nil {
		*a = new(uint64)
	}
	**a += *b
}

func sumCPU(containers []statsapi.ContainerStats) *statsapi.CPUStats {
	var sum *statsapi.CPUStats
	for _, c := range containers {
		if c.CPU == nil {
			continue
		}
		if sum == nil {
			sum = &statsapi.CPUStats{}
		}
		sum.Time = c.CPU.Time
		add(&sum.UsageCoreNanoSeconds, c.CPU.UsageCoreNanoSeconds)
		add(&sum.UsageNanoCores, c.CPU.UsageNanoCores)
	}
	return sum
}

func sumMemory(containers []statsapi.ContainerStats) *statsapi.MemoryStats {
	var sum *statsapi.MemoryStats
	for _, c := range containers {
		if c.Memory == nil {
			continue
		}
		if sum == nil {
			sum = &statsapi.MemoryStats{}
		}
		sum.Time = c.Memory.Time
		add(&sum.AvailableBytes, c.Memory.AvailableBytes)
		add(&sum.UsageBytes, c.Memory.UsageBytes)
		add(&sum.WorkingSetBytes, c.Memory.WorkingSetBytes)
		add(&sum.RSSBytes, c.Memory.RSSBytes)
		add(&sum.PageFaults, c.Memory.PageFaults)
		add(&sum.MajorPageFaults, c.Memory.MajorPageFaults)
	}
	return sum
}
