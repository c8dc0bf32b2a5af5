package cri

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/convert"
	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/pod"
)

func (s *service) containerStats(c *pod.Container, st *pod.ContainerStats) *runtimeapi.ContainerStats {
	u := &st.Usage
	out := &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id:          c.ID,
			Metadata:    convert.ContainerMetadata(c),
			Labels:      c.Config.Labels,
			Annotations: c.Config.Annotations,
		},
		Cpu:    cpuUsage(u, st.CPURate),
		Memory: memoryUsage(u),
		Swap:   &runtimeapi.SwapUsage{Timestamp: convert.Nanos(u.Time), SwapUsageBytes: value(u.Memory.Swap)},
		Io:     ioUsage(u),
		WritableLayer: &runtimeapi.FilesystemUsage{
			Timestamp:  convert.Nanos(st.DiskTime),
			FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: s.config.ImageFS},
			UsedBytes:  value(st.DiskBytes),
			InodesUsed: value(st.DiskInodes),
		},
	}
	if limit := u.Memory.SwapLimit; limit != nil {
		out.Swap.SwapAvailableBytes = value(*limit - min(u.Memory.Swap, *limit))
	}
	return out
}

func (s *service) podStats(p *pod.Pod, st *pod.PodStats) *runtimeapi.PodSandboxStats {
	u := &st.Usage
	linux := &runtimeapi.LinuxPodSandboxStats{
		Cpu:        cpuUsage(u, st.CPURate),
		Memory:     memoryUsage(u),
		Io:         ioUsage(u),
		Process:    &runtimeapi.ProcessUsage{Timestamp: convert.Nanos(u.Time), ProcessCount: value(u.Tasks)},
		Containers: s.withContainers(st.Containers),
	}
	if len(st.Interfaces) > 0 {
		linux.Network = &runtimeapi.NetworkUsage{Timestamp: convert.Nanos(st.NetworkTime), DefaultInterface: interfaceUsage(&st.Interfaces[0])}
		for i := range st.Interfaces[1:] {
			linux.Network.Interfaces = append(linux.Network.Interfaces, interfaceUsage(&st.Interfaces[i+1]))
		}
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: p.ID, Metadata: convert.PodMetadata(&p.Config), Labels: p.Config.Labels, Annotations: p.Config.Annotations,
		},
		Linux: linux,
	}
}

func cpuUsage(u *cgstat.Usage, rate *uint64) *runtimeapi.CpuUsage {
	out := &runtimeapi.CpuUsage{
		Timestamp: convert.Nanos(u.Time), UsageCoreNanoSeconds: value(uint64(u.CPU.Total)), Psi: psi(u.CPUPressure),
	}
	if rate != nil {
		out.UsageNanoCores = value(*rate)
	}
	return out
}

// memoryUsage leaves available_bytes unset where no limit says what is available.
func memoryUsage(u *cgstat.Usage) *runtimeapi.MemoryUsage {
	m := &u.Memory
	out := &runtimeapi.MemoryUsage{
		Timestamp:       convert.Nanos(u.Time),
		WorkingSetBytes: value(m.WorkingSet),
		UsageBytes:      value(m.Used),
		RssBytes:        value(m.RSS),
		PageFaults:      value(m.PageFaults),
		MajorPageFaults: value(m.MajorPageFaults),
		Psi:             psi(u.MemoryPressure),
	}
	if m.Limit != 0 {
		out.AvailableBytes = value(m.Limit - min(m.WorkingSet, m.Limit))
	}
	return out
}

func ioUsage(u *cgstat.Usage) *runtimeapi.IoUsage {
	return &runtimeapi.IoUsage{Timestamp: convert.Nanos(u.Time), Psi: psi(u.IOPressure)}
}

func psi(p *cgstat.Pressure) *runtimeapi.PsiStats {
	if p == nil {
		return nil
	}
	data := func(s cgstat.Stall) *runtimeapi.PsiData {
		return &runtimeapi.PsiData{Total: uint64(s.Total), Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
	}
	return &runtimeapi.PsiStats{Some: data(p.Some), Full: data(p.Full)}
}

func interfaceUsage(i *pod.InterfaceUsage) *runtimeapi.NetworkInterfaceUsage {
	return &runtimeapi.NetworkInterfaceUsage{
		Name: i.Name, RxBytes: value(i.RxBytes), RxErrors: value(i.RxErrors), TxBytes: value(i.TxBytes), TxErrors: value(i.TxErrors),
	}
}

func value(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }
