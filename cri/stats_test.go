package cri

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
)

func someUsage() cgstat.Usage {
	swap := uint64(60)
	return cgstat.Usage{
		Time: time.Unix(5, 0),
		CPU:  cgstat.CPU{Total: 1},
		Memory: cgstat.Memory{
			Used: 2, WorkingSet: 3, Limit: 7, RSS: 5, Swap: 6, SwapLimit: &swap, PageFaults: 7, MajorPageFaults: 8,
		},
		Tasks:          11,
		MemoryPressure: &cgstat.Pressure{Some: cgstat.Stall{Avg10: 1, Avg60: 2, Avg300: 3, Total: 4}, Full: cgstat.Stall{Total: 5}},
	}
}

func someStats() pod.ContainerStats {
	rate := uint64(12)
	return pod.ContainerStats{
		ID: "c1234", PodID: "p1", Usage: someUsage(), CPURate: &rate,
		DiskTime: time.Unix(4, 0), DiskBytes: 9, DiskInodes: 10,
	}
}

func wireStats() *runtimeapi.ContainerStats {
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id: "c1234", Metadata: &runtimeapi.ContainerMetadata{Name: "srv", Attempt: 3},
			Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "1"},
		},
		Cpu:    &runtimeapi.CpuUsage{Timestamp: 5e9, UsageCoreNanoSeconds: value(1), UsageNanoCores: value(12)},
		Memory: wireMemory(),
		Swap:   &runtimeapi.SwapUsage{Timestamp: 5e9, SwapUsageBytes: value(6), SwapAvailableBytes: value(54)},
		Io:     &runtimeapi.IoUsage{Timestamp: 5e9},
		WritableLayer: &runtimeapi.FilesystemUsage{
			Timestamp: 4e9, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/root/images"}, UsedBytes: value(9), InodesUsed: value(10),
		},
	}
}

func wireMemory() *runtimeapi.MemoryUsage {
	return &runtimeapi.MemoryUsage{
		Timestamp: 5e9, UsageBytes: value(2), WorkingSetBytes: value(3), AvailableBytes: value(4),
		RssBytes: value(5), PageFaults: value(7), MajorPageFaults: value(8),
		Psi: &runtimeapi.PsiStats{
			Some: &runtimeapi.PsiData{Avg10: 1, Avg60: 2, Avg300: 3, Total: 4}, Full: &runtimeapi.PsiData{Total: 5},
		},
	}
}

func aMeasuredPod() pod.Pod {
	return pod.Pod{ID: "p1", Config: podconfig.Pod{
		Name: "web", Namespace: "default", UID: "u1",
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "x"},
	}}
}

func somePodStats() pod.PodStats {
	return pod.PodStats{
		ID: "p1", Usage: someUsage(), NetworkTime: time.Unix(6, 0),
		Interfaces: []pod.InterfaceUsage{{Name: "eth0", RxBytes: 1, RxErrors: 2, TxBytes: 3, TxErrors: 4}, {Name: "net1", RxBytes: 5}},
		Containers: []pod.ContainerStats{{ID: "removed"}, someStats()},
	}
}

func TestContainerStats(t *testing.T) {
	e := serve(t, &double{fail: map[string]error{}, containers: []pod.Container{aContainer()}, stats: []pod.ContainerStats{someStats()}})
	resp, err := e.runtime.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wireStats(), resp.Stats, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if _, err := e.runtime.ContainerStats(t.Context(),
		&runtimeapi.ContainerStatsRequest{ContainerId: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("%v, want NotFound", err)
	}
	e.fail["Stats"] = errdefs.ErrUnavailable
	if _, err := e.runtime.ContainerStats(t.Context(),
		&runtimeapi.ContainerStatsRequest{ContainerId: "c1"}); status.Code(err) != codes.Unavailable {
		t.Errorf("%v, want Unavailable", err)
	}
}

func TestListContainerStats(t *testing.T) {
	gone := someStats()
	gone.ID = "removed"
	e := serve(t, &double{containers: []pod.Container{aContainer()}, stats: []pod.ContainerStats{gone, someStats()}})
	resp, err := e.runtime.ListContainerStats(t.Context(), &runtimeapi.ListContainerStatsRequest{
		Filter: &runtimeapi.ContainerStatsFilter{Id: "c", PodSandboxId: "p", LabelSelector: map[string]string{"l": "1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*runtimeapi.ContainerStats{wireStats()}, resp.Stats, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	want := call{"ListStats", []any{pod.ContainerFilter{ID: "c", PodID: "p", Labels: map[string]string{"l": "1"}}}}
	if diff := cmp.Diff(want.args, e.calls[0].args); diff != "" {
		t.Error(diff)
	}
}

func TestAvailableMemoryNeedsALimit(t *testing.T) {
	u := someUsage()
	u.Memory.Limit = 0
	if got := memoryUsage(&u); got.AvailableBytes != nil {
		t.Errorf("%v is available of an unlimited amount", got.AvailableBytes)
	}
}

func TestPodSandboxStats(t *testing.T) {
	e := serve(t, &double{
		pods: []pod.Pod{aMeasuredPod()}, containers: []pod.Container{aContainer()},
		podStats: []pod.PodStats{somePodStats()},
	})
	want := &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: "p1", Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u1"},
			Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "x"},
		},
		Linux: &runtimeapi.LinuxPodSandboxStats{
			Cpu:     &runtimeapi.CpuUsage{Timestamp: 5e9, UsageCoreNanoSeconds: value(1)},
			Memory:  wireMemory(),
			Io:      &runtimeapi.IoUsage{Timestamp: 5e9},
			Process: &runtimeapi.ProcessUsage{Timestamp: 5e9, ProcessCount: value(11)},
			Network: &runtimeapi.NetworkUsage{
				Timestamp: 6e9,
				DefaultInterface: &runtimeapi.NetworkInterfaceUsage{
					Name: "eth0", RxBytes: value(1), RxErrors: value(2), TxBytes: value(3),
					TxErrors: value(4),
				},
				Interfaces: []*runtimeapi.NetworkInterfaceUsage{{
					Name: "net1", RxBytes: value(5), RxErrors: value(0), TxBytes: value(0),
					TxErrors: value(0),
				}},
			},
			Containers: []*runtimeapi.ContainerStats{wireStats()},
		},
	}
	resp, err := e.runtime.PodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, resp.Stats, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	list, err := e.runtime.ListPodSandboxStats(t.Context(), &runtimeapi.ListPodSandboxStatsRequest{
		Filter: &runtimeapi.PodSandboxStatsFilter{Id: "p", LabelSelector: map[string]string{"app": "web"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*runtimeapi.PodSandboxStats{want}, list.Stats, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	i := slices.IndexFunc(e.calls, func(c call) bool { return c.method == "ListPodStats" })
	if diff := cmp.Diff([]any{pod.PodStatsFilter{ID: "p", Labels: map[string]string{"app": "web"}}}, e.calls[i].args); diff != "" {
		t.Error(diff)
	}
	for id, want := range map[string]codes.Code{"": codes.InvalidArgument, "x": codes.NotFound} {
		if _, err := e.runtime.PodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: id}); status.Code(err) != want {
			t.Errorf("%q: %v, want %v", id, err, want)
		}
	}
}

func TestMetricsFitTheirDescriptors(t *testing.T) {
	e := serve(t, &double{
		pods: []pod.Pod{aMeasuredPod()}, containers: []pod.Container{aContainer()},
		podStats: []pod.PodStats{somePodStats()},
	})
	described, err := e.runtime.ListMetricDescriptors(t.Context(), &runtimeapi.ListMetricDescriptorsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]int{}
	for _, d := range described.Descriptors {
		labels[d.Name] = len(d.LabelKeys)
	}
	resp, err := e.runtime.ListPodSandboxMetrics(t.Context(), &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.PodMetrics) != 1 || len(resp.PodMetrics[0].ContainerMetrics) != 1 {
		t.Fatalf("%v", resp.PodMetrics)
	}
	for _, m := range slices.Concat(resp.PodMetrics[0].Metrics, resp.PodMetrics[0].ContainerMetrics[0].Metrics) {
		if n, ok := labels[m.Name]; !ok || n != len(m.LabelValues) {
			t.Errorf("%s with labels %q; described with %d", m.Name, m.LabelValues, n)
		}
	}
}

func TestUpdateRuntimeConfig(t *testing.T) {
	e := serve(t, &double{fail: map[string]error{}})
	update := func(cidr string) error {
		_, err := e.runtime.UpdateRuntimeConfig(t.Context(), &runtimeapi.UpdateRuntimeConfigRequest{
			RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr}},
		})
		return err
	}
	if err := update(""); err != nil || len(e.calls) != 0 {
		t.Errorf("no range: %v, %v", err, e.calls)
	}
	if err := update("10.1.2.3/16, fd00::/64"); err != nil {
		t.Fatal(err)
	}
	if got := e.last(t).args[0]; !cmp.Equal(got, prefixes("10.1.0.0/16", "fd00::/64"), cmp.Comparer(samePrefix)) {
		t.Errorf("got %v", got)
	}
	for _, bad := range []string{"x", "10.0.0.0", "10.0.0.0/16,", "10.0.0.0/99"} {
		if err := update(bad); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", bad, err)
		}
	}
	e.fail["SetPodCIDR"] = errdefs.ErrInvalid
	if err := update("10.0.0.0/16"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a range that cannot be used: %v", err)
	}
}

func TestUpdatePodSandboxResources(t *testing.T) {
	e := serve(t, &double{})
	_, err := e.runtime.UpdatePodSandboxResources(t.Context(), &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: "p1", Resources: &runtimeapi.LinuxContainerResources{CpuShares: 5},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]any{"p1", (*podconfig.Resources)(nil), &podconfig.Resources{CPUShares: 5}}, e.last(t).args); diff != "" {
		t.Error(diff)
	}
	if _, err := e.runtime.UpdatePodSandboxResources(t.Context(),
		&runtimeapi.UpdatePodSandboxResourcesRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no id: %v", err)
	}
}
