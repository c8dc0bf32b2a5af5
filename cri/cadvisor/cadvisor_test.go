package cadvisor

import (
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

func TestDescriptorsAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range Descriptors() {
		if seen[d.Name] || d.Help == "" {
			t.Errorf("%s: twice, or without help", d.Name)
		}
		seen[d.Name] = true
	}
	if len(seen) < 50 {
		t.Errorf("%d metrics", len(seen))
	}
}

func subject() *Pod {
	usage := cgstat.Usage{
		Time:      time.Unix(50, 0),
		CPU:       cgstat.CPU{Total: 2500 * time.Millisecond},
		Devices:   []cgstat.Device{{Name: "sda", Major: 8, ReadBytes: 10, WriteBytes: 20}},
		Hugepages: map[string]cgstat.Hugepages{"2MB": {Used: 1}, "1GB": {Used: 2}},
		IOPressure: &cgstat.Pressure{
			Some: cgstat.Stall{Total: 9 * time.Second}, Full: cgstat.Stall{Total: time.Second},
		},
	}
	return &Pod{
		Pod: pod.Pod{ID: "p1", Config: podconfig.Pod{Name: "web", Namespace: "default"}},
		Stats: pod.PodStats{
			Usage: usage, NetworkTime: time.Unix(51, 0),
			Interfaces: []pod.InterfaceUsage{{Name: "eth0", RxBytes: 7}},
		},
		Containers: []Container{{
			Container: pod.Container{ID: "c1", Config: podconfig.Container{Name: "main"}},
			Image:     "busybox", Stats: pod.ContainerStats{Usage: usage},
			Processes: cgstat.Processes{Count: 3, States: cgstat.States{Sleeping: 3}}, FS: FS{Device: "/dev/sdb"},
		}},
	}
}

func TestMetrics(t *testing.T) {
	out := Metrics(subject())
	for _, want := range []struct {
		in     []*runtimeapi.Metric
		name   string
		labels []string
		value  uint64
	}{
		{out.Metrics, "container_cpu_usage_seconds_total", []string{"", "p1", "", "", "default", "web", "total"}, 2},
		{out.Metrics, "container_network_receive_bytes_total", []string{"", "p1", "", "", "default", "web", "eth0"}, 7},
		{
			out.ContainerMetrics[0].Metrics, "container_fs_reads_bytes_total",
			[]string{"main", "c1", "busybox", "c1", "default", "web", "/dev/sda"},
			10,
		},
		{
			out.ContainerMetrics[0].Metrics, "container_blkio_device_usage_total",
			[]string{"main", "c1", "busybox", "c1", "default", "web", "/dev/sda", "8", "0", "Write"},
			20,
		},
		{out.ContainerMetrics[0].Metrics, "container_hugetlb_usage_bytes", []string{"main", "c1", "busybox", "c1", "default", "web", "2MB"}, 1},
		{
			out.ContainerMetrics[0].Metrics, "container_pressure_io_waiting_seconds_total",
			[]string{"main", "c1", "busybox", "c1", "default", "web"},
			9,
		},
		{out.ContainerMetrics[0].Metrics, "container_tasks_state", []string{"main", "c1", "busybox", "c1", "default", "web", "sleeping"}, 3},
	} {
		if !slices.ContainsFunc(want.in, func(m *runtimeapi.Metric) bool {
			return m.Name == want.name && slices.Equal(m.LabelValues, want.labels) && m.Value.Value == want.value && m.Timestamp > 0
		}) {
			t.Errorf("no %s %q with value %d", want.name, want.labels, want.value)
		}
	}
	// A kernel that does not count pressure has no such metric, rather than one of 0.
	for _, m := range out.Metrics {
		if m.Name == "container_pressure_cpu_waiting_seconds_total" {
			t.Errorf("%v without a reading", m)
		}
	}
}
