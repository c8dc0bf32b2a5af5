package cri

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/pod"
)

func TestVersion(t *testing.T) {
	e := serve(t, &double{})
	resp, err := e.runtime.Version(t.Context(), &runtimeapi.VersionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "coracle", RuntimeVersion: "v1.2.3", RuntimeApiVersion: "v1"}
	if diff := cmp.Diff(want, resp, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestStatus(t *testing.T) {
	e := serve(t, &double{fail: map[string]error{}}, func(c *Config, _ *Deps) { c.RecursiveReadonly = true })
	resp, err := e.runtime.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	features := &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}
	want := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Status: true},
		}},
		Info:            map[string]string{"config": `{"root":"/r"}`},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Features: features}, {Name: "coracle", Features: features}},
		Features:        &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}
	if diff := cmp.Diff(want, resp, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}

	e.fail["NetworkReady"] = errors.New("no CNI plugin")
	resp, err = e.runtime.Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	network := &runtimeapi.RuntimeCondition{Type: "NetworkReady", Reason: "NetworkNotReady", Message: "no CNI plugin"}
	if diff := cmp.Diff(network, resp.Status.Conditions[1], protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if resp.Info != nil {
		t.Errorf("info without verbose: %v", resp.Info)
	}
}

func TestRuntimeConfig(t *testing.T) {
	for systemd, want := range map[bool]runtimeapi.CgroupDriver{
		false: runtimeapi.CgroupDriver_CGROUPFS,
		true:  runtimeapi.CgroupDriver_SYSTEMD,
	} {
		e := serve(t, &double{}, func(c *Config, _ *Deps) { c.SystemdCgroup = systemd })
		resp, err := e.runtime.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
		if err != nil || resp.Linux.CgroupDriver != want {
			t.Errorf("%v, %v, want %v", resp, err, want)
		}
	}
}

func someStats() pod.ContainerStats {
	return pod.ContainerStats{
		ID: "c1234", Time: time.Unix(5, 0), CPUUsage: 1, MemoryUsage: 2, MemoryWorkingSet: 3, MemoryAvailable: 4,
		MemoryRSS: 5, SwapUsage: 6, PageFaults: 7, MajorPageFaults: 8, DiskBytes: 9, DiskInodes: 10,
	}
}

func wireStats() *runtimeapi.ContainerStats {
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id: "c1234", Metadata: &runtimeapi.ContainerMetadata{Name: "srv", Attempt: 3},
			Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "1"},
		},
		Cpu: &runtimeapi.CpuUsage{Timestamp: 5e9, UsageCoreNanoSeconds: value(1)},
		Memory: &runtimeapi.MemoryUsage{
			Timestamp: 5e9, UsageBytes: value(2), WorkingSetBytes: value(3), AvailableBytes: value(4),
			RssBytes: value(5), PageFaults: value(7), MajorPageFaults: value(8),
		},
		Swap: &runtimeapi.SwapUsage{Timestamp: 5e9, SwapUsageBytes: value(6)},
		WritableLayer: &runtimeapi.FilesystemUsage{
			Timestamp: 5e9, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/root/images"}, UsedBytes: value(9), InodesUsed: value(10),
		},
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
	if _, err := e.runtime.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("%v, want NotFound", err)
	}
	e.fail["Stats"] = pod.ErrUnavailable
	if _, err := e.runtime.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: "c1"}); status.Code(err) != codes.Unavailable {
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

func TestImageFsInfo(t *testing.T) {
	e := serve(t, &double{fail: map[string]error{}})
	resp, err := e.image.ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, all := range [][]*runtimeapi.FilesystemUsage{resp.ImageFilesystems, resp.ContainerFilesystems} {
		if len(all) != 1 || all[0].FsId.Mountpoint != "/root/images" || all[0].UsedBytes.Value != 4096 ||
			all[0].InodesUsed.Value != 7 || all[0].Timestamp == 0 {
			t.Errorf("%v", all)
		}
	}
	e.fail["Usage"] = context.DeadlineExceeded
	if _, err := e.image.ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("%v, want DeadlineExceeded", err)
	}
}
