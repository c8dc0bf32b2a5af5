package nri

import (
	"net/netip"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
)

func TestPodOf(t *testing.T) {
	got := podOf(&pod.Pod{
		ID: "id", Config: podconfig.Pod{
			Name: "n", UID: "u", Namespace: "ns", RuntimeHandler: "h",
			Overhead: &podconfig.Resources{MemoryLimit: 5},
		},
		IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, NetNS: "/ns/net",
	})
	if got.Id != "id" || got.RuntimeHandler != "h" || got.Ips[0] != "10.0.0.1" || got.Linux.Namespaces[0].Path != "/ns/net" ||
		got.Linux.PodOverhead.Memory.Limit.Value != 5 || got.Linux.PodResources != nil {
		t.Errorf("%v", got)
	}
}

// TestContainerOf: specifications have many parts that need not be there.
func TestContainerOf(t *testing.T) {
	score := -5
	for name, spec := range map[string]*specs.Spec{
		"empty":           {},
		"without details": {Process: &specs.Process{Args: []string{"true"}}, Linux: &specs.Linux{}},
		"with details": {
			Process: &specs.Process{Args: []string{"true"}, OOMScoreAdj: &score, Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}}},
			Linux:   &specs.Linux{Seccomp: &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}, Resources: &specs.LinuxResources{}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			at := time.Unix(1, 2)
			got := containerOf(&plugins.Container{
				Container: pod.Container{ID: "id", PodID: "pod", State: pod.Running, Pid: 7, StartedAt: at},
				Spec:      spec,
			})
			if got.Id != "id" || got.PodSandboxId != "pod" || got.State != api.ContainerState_CONTAINER_RUNNING || got.Pid != 7 ||
				got.StartedAt != at.UnixNano() || got.FinishedAt != 0 {
				t.Errorf("%v", got)
			}
			if spec.Linux != nil && spec.Linux.Seccomp != nil &&
				(got.Linux.SeccompPolicy.DefaultAction != "SCMP_ACT_ERRNO" || got.Linux.OomScoreAdj.Value != -5) {
				t.Errorf("%v", got)
			}
		})
	}
}
