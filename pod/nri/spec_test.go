package nri

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
	nrigenerate "github.com/containerd/nri/pkg/runtime-tools/generate"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestEditor: each kind of adjustment ends where it belongs.
func TestEditor(t *testing.T) {
	spec := &specs.Spec{
		Process: &specs.Process{Args: []string{"old"}, Env: []string{"A=1", "B=2"}},
		Mounts:  []specs.Mount{{Destination: "/gone"}, {Destination: "/kept"}},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: "/old"}},
			Devices:    []specs.LinuxDevice{{Path: "/dev/gone"}},
			Sysctl:     map[string]string{"a.b": "1"},
			Resources:  &specs.LinuxResources{},
		},
		Annotations: map[string]string{"gone": "1"},
	}
	a := &api.ContainerAdjustment{}
	a.SetArgs([]string{"new"})
	a.AddEnv("B", "3")
	a.AddEnv("C", "4")
	a.RemoveEnv("A")
	a.AddAnnotation("boat", "1")
	a.RemoveAnnotation("gone")
	a.AddMount(&api.Mount{Destination: "/boat", Source: "/src", Type: "bind"})
	a.RemoveMount("/gone")
	a.AddDevice(&api.LinuxDevice{Path: "/dev/boat", Type: "c", Major: 1, Minor: 3})
	a.RemoveDevice("/dev/gone")
	a.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "network", Path: "/new"})
	a.SetLinuxSysctl("c.d", "2")
	a.SetLinuxSysctl("-a.b", "")
	a.SetLinuxCgroupsPath("/boats/1")
	a.SetLinuxMemoryLimit(5)
	a.SetLinuxCPUShares(7)
	a.SetLinuxCPUQuota(8)
	a.SetLinuxCPUPeriod(9)
	a.SetLinuxCPUSetCPUs("0")
	a.SetLinuxCPUSetMems("1")
	a.AddLinuxHugepageLimit("2MB", 10)
	a.AddLinuxUnified("memory.high", "11")
	a.AddRlimit("RLIMIT_NOFILE", 12, 13)
	a.AddHooks(&api.Hooks{Prestart: []*api.Hook{{Path: "/1"}}, Poststart: []*api.Hook{{Path: "/2"}}, Poststop: []*api.Hook{{Path: "/3"}}})
	score := 14
	a.SetLinuxOomScoreAdj(&score)
	if err := nrigenerate.SpecGenerator(editor{spec}).Adjust(a); err != nil {
		t.Fatal(err)
	}
	ptr := func(n int64) *int64 { return &n }
	uptr := func(n uint64) *uint64 { return &n }
	want := &specs.Spec{
		Process: &specs.Process{
			Args: []string{"new"}, Env: []string{"B=3", "C=4"}, OOMScoreAdj: &score,
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 12, Soft: 13}},
		},
		Mounts: []specs.Mount{{Destination: "/boat", Source: "/src", Type: "bind"}, {Destination: "/kept"}},
		Linux: &specs.Linux{
			Namespaces:  []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: "/new"}},
			Devices:     []specs.LinuxDevice{{Path: "/dev/boat", Type: "c", Major: 1, Minor: 3}},
			Sysctl:      map[string]string{"c.d": "2"},
			CgroupsPath: "/boats/1",
			Resources: &specs.LinuxResources{
				Devices:        []specs.LinuxDeviceCgroup{{Allow: true, Type: "c", Major: ptr(1), Minor: ptr(3), Access: "rw"}},
				Memory:         &specs.LinuxMemory{Limit: ptr(5), Swap: ptr(5)}, // the library lets no swap be used beyond the limit,
				CPU:            &specs.LinuxCPU{Shares: uptr(7), Quota: ptr(8), Period: uptr(9), Cpus: "0", Mems: "1"},
				HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 10}},
				Unified:        map[string]string{"memory.high": "11"},
			},
		},
		Annotations: map[string]string{"boat": "1"},
		//lint:ignore SA1019 see AddPreStartHook
		Hooks: &specs.Hooks{Prestart: []specs.Hook{{Path: "/1"}}, Poststart: []specs.Hook{{Path: "/2"}}, Poststop: []specs.Hook{{Path: "/3"}}},
	}
	if diff := cmp.Diff(want, spec); diff != "" {
		t.Error(diff)
	}
}
