package cri

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/convert"
	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

func int64p(n int64) *int64 { return &n }

func fullPodConfig() *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web", Uid: "u1", Namespace: "default", Attempt: 2},
		Hostname:     "web-0",
		LogDirectory: "/var/log/pods/web",
		DnsConfig:    &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"}, Searches: []string{"svc"}, Options: []string{"ndots:5"}},
		PortMappings: []*runtimeapi.PortMapping{{Protocol: runtimeapi.Protocol_UDP, ContainerPort: 53, HostPort: 5353, HostIp: "127.0.0.1"}},
		Labels:       map[string]string{"app": "web"},
		Annotations:  map[string]string{"note": "x"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods/pod1",
			Sysctls:      map[string]string{"net.core.somaxconn": "512"},
			Overhead:     &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 20},
			Resources:    &runtimeapi.LinuxContainerResources{CpuShares: 100},
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{
					Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER, Ipc: runtimeapi.NamespaceMode_POD,
					UsernsOptions: &runtimeapi.UserNamespace{
						Uids: []*runtimeapi.IDMapping{{HostId: 5, Length: 6}}, Gids: []*runtimeapi.IDMapping{{ContainerId: 7, HostId: 8, Length: 9}},
					},
				},
				SelinuxOptions: &runtimeapi.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "l"},
				RunAsUser:      &runtimeapi.Int64Value{Value: 1000}, RunAsGroup: &runtimeapi.Int64Value{Value: 0},
				ReadonlyRootfs: true, SupplementalGroups: []int64{5}, Privileged: true,
				Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/p.json"},
			},
		},
	}
}

func convertedPodConfig() podconfig.Pod {
	return podconfig.Pod{
		Name: "web", UID: "u1", Namespace: "default", Attempt: 2,
		Hostname: "web-0", LogDirectory: "/var/log/pods/web",
		DNS:    podconfig.DNS{Servers: []string{"10.0.0.10"}, Searches: []string{"svc"}, Options: []string{"ndots:5"}},
		Ports:  []podconfig.Port{{Protocol: "udp", ContainerPort: 53, HostPort: 5353, HostIP: "127.0.0.1"}},
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "x"},
		CgroupParent: "/kubepods/pod1", Sysctls: map[string]string{"net.core.somaxconn": "512"},
		RuntimeHandler: "coracle",
		Namespaces: podconfig.Namespaces{
			Network: podconfig.NamespaceNode, PID: podconfig.NamespaceContainer, IPC: podconfig.NamespacePod, User: podconfig.NamespacePod,
			Users: podconfig.IDMaps{UIDs: []podconfig.IDMap{{Host: 5, Length: 6}}, GIDs: []podconfig.IDMap{{Container: 7, Host: 8, Length: 9}}},
		},
		Privileged: true, ReadonlyRootfs: true,
		User: podconfig.User{UID: int64p(1000), GID: int64p(0)}, SupplementalGroups: []int64{5},
		Seccomp:  podconfig.Seccomp{Type: podconfig.ProfileLocalhost, Localhost: "/p.json"},
		SELinux:  podconfig.SELinux{User: "u", Role: "r", Type: "t", Level: "l"},
		Overhead: &podconfig.Resources{MemoryLimit: 1 << 20}, Resources: &podconfig.Resources{CPUShares: 100},
	}
}

func TestRunPodSandboxConvertsEveryField(t *testing.T) {
	e := serve(t, &double{})
	resp, err := e.runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: fullPodConfig(), RuntimeHandler: "coracle"})
	if err != nil {
		t.Fatal(err)
	}
	if resp.PodSandboxId != "new-pod" {
		t.Errorf("id %q", resp.PodSandboxId)
	}
	if diff := cmp.Diff(convertedPodConfig(), e.last(t).args[0]); diff != "" {
		t.Error(diff)
	}
}

func TestPodConfigRejections(t *testing.T) {
	security := func(c *runtimeapi.PodSandboxConfig) *runtimeapi.LinuxSandboxSecurityContext {
		return c.Linux.SecurityContext
	}
	for name, spoil := range map[string]func(*runtimeapi.PodSandboxConfig){
		"no metadata":          func(c *runtimeapi.PodSandboxConfig) { c.Metadata = nil },
		"no name":              func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Name = "" },
		"windows":              func(c *runtimeapi.PodSandboxConfig) { c.Windows = &runtimeapi.WindowsPodSandboxConfig{} },
		"port too large":       func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].HostPort = 65536 },
		"negative port":        func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].ContainerPort = -1 },
		"unknown protocol":     func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].Protocol = 9 },
		"bad host ip":          func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].HostIp = "localhost" },
		"unknown mode":         func(c *runtimeapi.PodSandboxConfig) { security(c).NamespaceOptions.Ipc = 8 },
		"network of container": func(c *runtimeapi.PodSandboxConfig) { security(c).NamespaceOptions.Network = 1 },
		"target without id":    func(c *runtimeapi.PodSandboxConfig) { security(c).NamespaceOptions.Pid = 3 },
		"id without target":    func(c *runtimeapi.PodSandboxConfig) { security(c).NamespaceOptions.TargetId = "x" },
		"group without user":   func(c *runtimeapi.PodSandboxConfig) { security(c).RunAsUser = nil },
		"negative user":        func(c *runtimeapi.PodSandboxConfig) { security(c).RunAsUser.Value = -1 },
		"user out of range":    func(c *runtimeapi.PodSandboxConfig) { security(c).RunAsUser.Value = 1<<32 - 1 },
		"localhost without path": func(c *runtimeapi.PodSandboxConfig) {
			security(c).Seccomp.LocalhostRef = ""
		},
		"unknown seccomp type": func(c *runtimeapi.PodSandboxConfig) { security(c).Seccomp.ProfileType = 7 },
		"unknown old seccomp": func(c *runtimeapi.PodSandboxConfig) {
			security(c).Seccomp = nil
			security(c).SeccompProfilePath = "strict" //lint:ignore SA1019 still sent
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := fullPodConfig()
			spoil(c)
			if _, err := convert.Pod(c, ""); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v, want InvalidArgument", err)
			}
		})
	}
	if _, err := convert.Pod(nil, ""); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no config: %v", err)
	}
}

func aPod() pod.Pod {
	return pod.Pod{
		ID: "pod1234", Config: convertedPodConfig(), State: pod.Ready,
		CreatedAt: time.Unix(10, 20),
		IPs:       []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")},
		NetNS:     "/run/ns/net", Pid: 77,
	}
}

func TestPodSandboxStatus(t *testing.T) {
	e := serve(t, &double{pods: []pod.Pod{aPod()}})
	resp, err := e.runtime.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: "pod1", Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	want := &runtimeapi.PodSandboxStatus{
		Id:        "pod1234",
		Metadata:  fullPodConfig().Metadata,
		State:     runtimeapi.PodSandboxState_SANDBOX_READY,
		CreatedAt: 10*1e9 + 20,
		Network:   &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.2", AdditionalIps: []*runtimeapi.PodIP{{Ip: "fd00::2"}}},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: fullPodConfig().Linux.SecurityContext.NamespaceOptions,
		}},
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "x"},
		RuntimeHandler: "coracle",
	}
	if diff := cmp.Diff(want, resp.Status, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	var got podInfo
	if err := json.Unmarshal([]byte(resp.Info["info"]), &got); err != nil {
		t.Fatal(err)
	}
	if got.PID != 77 || got.NetNS != "/run/ns/net" || got.Config.GetMetadata().GetName() != "web" {
		t.Errorf("info %+v", got)
	}
	resp, err = e.runtime.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: "pod1"})
	if err != nil || len(resp.Info) != 0 {
		t.Errorf("not verbose: %v, %v", resp.GetInfo(), err)
	}
}

// A kubelet with evented PLEG takes the containers from here, and compares the timestamp with those
// of events: it must not be later than what was read.
func TestPodSandboxStatusHasItsContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &double{pods: []pod.Pod{aPod()}, containers: []pod.Container{aContainer()}, images: []image.Image{anImage()}}
		s := newService(Config{}, Deps{Pods: slow{d}, Images: imageDouble{d}})
		asked := time.Now()
		resp, err := s.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: "pod1"})
		if err != nil {
			t.Fatal(err)
		}
		if resp.Timestamp != asked.UnixNano() {
			t.Errorf("as of %v, asked at %v", time.Unix(0, resp.Timestamp), asked)
		}
		if diff := cmp.Diff(pod.ContainerFilter{PodID: "pod1234"}, d.asked("Containers")); diff != "" {
			t.Error(diff)
		}
		one, err := s.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: "c1"})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]*runtimeapi.ContainerStatus{one.Status}, resp.ContainersStatuses, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
	})
}

// slow takes its time to answer about pods.
type slow struct{ *double }

func (s slow) Pod(id string) (pod.Pod, error) {
	time.Sleep(time.Second)
	return s.double.Pod(id)
}

func TestListPodSandbox(t *testing.T) {
	gone := aPod()
	gone.ID, gone.State, gone.CreatedAt = "pod9", pod.NotReady, time.Time{}
	e := serve(t, &double{pods: []pod.Pod{aPod(), gone}})
	for name, tt := range map[string]struct {
		filter *runtimeapi.PodSandboxFilter
		want   pod.PodFilter
	}{
		"none":  {nil, pod.PodFilter{}},
		"id":    {&runtimeapi.PodSandboxFilter{Id: "ab"}, pod.PodFilter{ID: "ab"}},
		"ready": {&runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{}}, pod.PodFilter{State: pod.Ready}},
		"of the future": {
			&runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: 99}},
			pod.PodFilter{State: convert.NoPods},
		},
		"not ready, labels": {
			&runtimeapi.PodSandboxFilter{
				State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY},
				LabelSelector: map[string]string{"a": "b"},
			},
			pod.PodFilter{State: pod.NotReady, Labels: map[string]string{"a": "b"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := e.runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: tt.filter})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, e.last(t).args[0]); diff != "" {
				t.Error(diff)
			}
			if len(resp.Items) != 2 || resp.Items[0].State != runtimeapi.PodSandboxState_SANDBOX_READY ||
				resp.Items[1].State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY || resp.Items[1].CreatedAt != 0 ||
				resp.Items[0].Metadata.Attempt != 2 {
				t.Errorf("items %v", resp.Items)
			}
		})
	}
}

func TestStopAndRemovePod(t *testing.T) {
	e := serve(t, &double{fail: map[string]error{}})
	if _, err := e.runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: "p"}); err != nil {
		t.Error(err)
	}
	if c := e.last(t); c.method != "Stop" || c.args[0] != "p" {
		t.Errorf("%v", c)
	}
	if _, err := e.runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: "p"}); err != nil {
		t.Error(err)
	}
	if c := e.last(t); c.method != "Remove" || c.args[0] != "p" {
		t.Errorf("%v", c)
	}
	e.fail["Stop"] = errors.New("umount: busy")
	if _, err := e.runtime.StopPodSandbox(t.Context(),
		&runtimeapi.StopPodSandboxRequest{PodSandboxId: "p"}); status.Code(err) != codes.Unknown {
		t.Errorf("%v, want Unknown", err)
	}
}
