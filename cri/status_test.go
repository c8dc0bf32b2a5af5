package cri

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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
	e := serve(t, &double{fail: map[string]error{}}, func(c *Config, _ *Deps) {
		c.Handlers = func() []Handler { return []Handler{{RecursiveReadonly: true}, {Name: "kata", UserNamespaces: true}} }
	})
	resp, err := e.runtime.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	want := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Status: true},
		}},
		Info: map[string]string{"config": `{"root":"/r"}`},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{
			{Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}},
			{Name: "kata", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}},
		},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
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
	e.fail["Ready"] = errors.New("the shim hangs")
	resp, err = e.runtime.Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	runtime := &runtimeapi.RuntimeCondition{Type: "RuntimeReady", Reason: "RecoveryIncomplete", Message: "the shim hangs"}
	if diff := cmp.Diff(runtime, resp.Status.Conditions[0], protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if resp.Info != nil {
		t.Errorf("info without verbose: %v", resp.Info)
	}
}

func TestBuiltInNetwork(t *testing.T) {
	why := "no CNI configuration in /x"
	e := serve(t, &double{fail: map[string]error{}}, func(_ *Config, d *Deps) { d.BuiltInNetwork = func() string { return why } })
	for _, want := range []*runtimeapi.RuntimeCondition{
		{Type: "NetworkReady", Status: true, Reason: "BuiltInNetwork", Message: why}, {Type: "NetworkReady", Status: true},
	} {
		resp, err := e.runtime.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, resp.Status.Conditions[1], protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
		why = ""
	}
}

func TestRuntimeNotReady(t *testing.T) {
	var err error
	e := serve(t, &double{fail: map[string]error{}}, func(_ *Config, d *Deps) { d.RuntimeReady = func() error { return err } })
	for _, want := range []*runtimeapi.RuntimeCondition{
		{Type: "RuntimeReady", Status: true},
		{Type: "RuntimeReady", Reason: "ShimUnavailable", Message: "shim node: ended for good"},
		{Type: "RuntimeReady", Status: true},
	} {
		if err = nil; !want.Status {
			err = errors.New(want.Message)
		}
		resp, err := e.runtime.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, resp.Status.Conditions[0], protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
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
