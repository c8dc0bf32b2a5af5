package usage

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func val(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }

const second = 1_000_000_000

// reading is a pod with one container after some seconds, having used so many of CPU time.
func reading(at int64, cpu, received uint64) []*runtimeapi.PodSandboxStats {
	use := &runtimeapi.CpuUsage{Timestamp: at * second, UsageCoreNanoSeconds: val(cpu)}
	container := &runtimeapi.ContainerStats{
		Attributes:    &runtimeapi.ContainerAttributes{Id: "c1", Metadata: &runtimeapi.ContainerMetadata{Name: "main"}},
		Cpu:           use,
		Memory:        &runtimeapi.MemoryUsage{WorkingSetBytes: val(100), AvailableBytes: val(400)},
		WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: val(7)},
	}
	return []*runtimeapi.PodSandboxStats{{
		Attributes: &runtimeapi.PodSandboxAttributes{Id: "p1", Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "shop"}},
		Linux: &runtimeapi.LinuxPodSandboxStats{
			Cpu: use, Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: val(200)}, Process: &runtimeapi.ProcessUsage{ProcessCount: val(3)},
			Network: &runtimeapi.NetworkUsage{
				Timestamp:        at * second,
				DefaultInterface: &runtimeapi.NetworkInterfaceUsage{Name: "eth0", RxBytes: val(received), TxBytes: val(0)},
				Interfaces:       []*runtimeapi.NetworkInterfaceUsage{{Name: "lo", RxBytes: val(1 << 40)}},
			},
			Containers: []*runtimeapi.ContainerStats{container},
		},
	}}
}

func TestFirstReadingHasNoRates(t *testing.T) {
	var m Meter
	all := m.take(reading(1, 5, 5))
	if len(all) != 2 || all[0].Container != "" || all[1].Container != "main" || all[1].Pod != "web" || all[1].Namespace != "shop" {
		t.Fatalf("%+v", all)
	}
	pod, c := all[0], all[1]
	if pod.CPU != nil || pod.Received != nil || c.CPU != nil {
		t.Errorf("rates of one reading: %+v, %+v", pod, c)
	}
	if pod.Memory != 200 || pod.MemoryLimit != nil || pod.Processes != 3 || pod.Disk != 7 {
		t.Errorf("pod %+v", pod)
	}
	if c.Memory != 100 || *c.MemoryLimit != 500 || c.Disk != 7 {
		t.Errorf("container %+v", c)
	}
}

func TestRates(t *testing.T) {
	for _, tc := range []struct {
		name          string
		at            int64
		cpu, received uint64
		cores, bytes  float64
		none          bool
	}{
		{name: "half a core", at: 3, cpu: 5 + second, received: 2005, cores: 0.5, bytes: 1000},
		{name: "idle", at: 2, cpu: 5, received: 5},
		{name: "the same reading again", at: 1, cpu: 5, received: 5, none: true},
		{name: "a counter that starts again", at: 2, cpu: 4, received: 4, none: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var m Meter
			m.take(reading(1, 5, 5))
			pod := m.take(reading(tc.at, tc.cpu, tc.received))[0]
			if tc.none {
				if pod.CPU != nil || pod.Received != nil {
					t.Errorf("%+v", pod)
				}
				return
			}
			if *pod.CPU != tc.cores || *pod.Received != tc.bytes {
				t.Errorf("%f cores, %f bytes per second", *pod.CPU, *pod.Received)
			}
		})
	}
}
