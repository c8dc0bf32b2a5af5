package ocispec

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

var update = flag.Bool("update", false, "write the golden files again")

// base is the plainest container; the cases change it.
func base() Input {
	return Input{
		Identity: Identity{
			ID: "cid", Name: "web", PodID: "pid", PodName: "pod", PodNamespace: "default", PodUID: "uid", Image: "busybox:1",
		},
		Root: "/run/c/rootfs", Hostname: "pod", Args: []string{"sh", "-c", "true"},
		ImageEnv: []string{"PATH=/bin", "A=image", "B=image"}, Env: [][2]string{{"B", "caller"}, {"C", "x=y"}},
		Groups:       []uint32{0, 10},
		Capabilities: Capabilities{Available: known},
		Namespaces:   Namespaces{Net: "/ns/net", IPC: "/ns/ipc", UTS: "/ns/uts"},
		Files:        Files{ResolvConf: "/p/resolv.conf", Hosts: "/p/hosts", Hostname: "/p/hostname", Shm: "/p/shm"},
		CgroupsPath:  "/coracle/cid",
	}
}

func TestGolden(t *testing.T) {
	null := Device{
		Node:        specs.LinuxDevice{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229},
		Permissions: "rw",
	}
	for name, change := range map[string]func(in *Input){
		"plain": func(*Input) {},
		"privileged": func(in *Input) {
			in.Privileged, in.AllDevices = true, true
			in.Devices = []Device{null}
			in.Seccomp.Default = true
			in.Capabilities.Available = []string{"CAP_CHOWN", "CAP_SYS_ADMIN"}
		},
		"host-namespaces": func(in *Input) {
			in.Namespaces = Namespaces{HostNet: true, HostIPC: true, HostPID: true}
			in.Files.Shm = "/dev/shm"
		},
		"shared-pid": func(in *Input) { in.Namespaces.PID = "/proc/7/ns/pid" },
		"mounts": func(in *Input) {
			in.ReadonlyRoot = true
			in.Mounts = []Mount{
				{Source: "/h/deep", Destination: "/data/a/b", Propagation: "rshared"},
				{Source: "/h/data", Destination: "/data", Readonly: true, Propagation: "rslave"},
				{Source: "/h/hosts", Destination: "/etc/hosts"},
				{Source: "/h/shm", Destination: "/dev/shm/"},
				{Source: "/h/ro", Destination: "/ro", Readonly: true, RecursiveReadonly: true},
			}
		},
		"host-dev": func(in *Input) {
			in.Mounts = []Mount{{Source: "/dev", Destination: "/dev"}, {Source: "/h/etc", Destination: "/etc"}}
		},
		"limits": func(in *Input) {
			in.Resources = Resources{
				CPUPeriod: 100000, CPUQuota: 50000, CPUShares: 512, MemoryLimit: 1 << 30, MemorySwapLimit: 2 << 30,
				OOMScoreAdj: 900, CpusetCPUs: "0-1", CpusetMems: "0",
				Hugepages: map[string]uint64{"2MB": 4 << 20, "1GB": 0}, Unified: map[string]string{"memory.high": "1000"},
			}
			in.Devices = []Device{null}
		},
		"security": func(in *Input) {
			in.TTY, in.NoNewPrivs, in.UID, in.GID, in.WorkingDir = true, true, 33, 44, "/srv"
			in.AppArmor, in.ProcessLabel, in.MountLabel = "profile", "u:r:t:s0", "u:r:f:s0"
			in.Capabilities.Add, in.Capabilities.Drop = []string{"net_admin"}, []string{"CAP_CHOWN", "KILL"}
			in.Capabilities.Ambient = []string{"NET_BIND_SERVICE"}
			in.MaskedPaths, in.ReadonlyPaths = []string{"/proc/kcore"}, []string{"/proc/sys"}
			in.Seccomp.JSON = `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[
				{"names":["mount"],"action":"SCMP_ACT_ERRNO","excludes":{"caps":["CAP_SYS_ADMIN"]}},
				{"names":["reboot"],"action":"SCMP_ACT_ERRNO","includes":{"caps":["CAP_SYS_BOOT"]}}]}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := base()
			change(&in)
			s, err := Container(in)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name, s)
		})
	}
	t.Run("podinit", func(t *testing.T) {
		s, err := PodInit(Init{
			Identity: Identity{PodID: "pid", PodName: "pod", PodNamespace: "default", PodUID: "uid"},
			Root:     "/run/p/init/rootfs", Path: "/coracle-pod-init", Binary: "/usr/bin/shim",
			Namespaces: Namespaces{Net: "/ns/net", IPC: "/ns/ipc", UTS: "/ns/uts"}, CgroupsPath: "/coracle/pid",
			Seccomp:  Seccomp{JSON: `{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[]}`},
			AppArmor: "profile", ProcessLabel: "u:r:t:s0",
		})
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "podinit", s)
	})
}

// A sandbox that asks for no filter gets the default one; shims of virtual machines get no limits.
func TestPodInitDefaults(t *testing.T) {
	for _, unlimited := range []bool{false, true} {
		s, err := PodInit(Init{Path: "/i", Unlimited: unlimited})
		if err != nil {
			t.Fatal(err)
		}
		def, err := defaultProfile(s)
		if err != nil {
			t.Fatal(err)
		}
		if s.Linux.Seccomp != def {
			t.Errorf("unlimited %t: not the default profile", unlimited)
		}
		if r := s.Linux.Resources; (r.Memory == nil) != unlimited || (r.Pids == nil) != unlimited {
			t.Errorf("unlimited %t: memory %v, pids %v", unlimited, r.Memory, r.Pids)
		}
	}
}

func golden(t *testing.T, name string, s *specs.Spec) {
	t.Helper()
	got, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	file := filepath.Join("testdata", name+".json")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-want +got; -update accepts it):\n%s", file, cmp.Diff(string(want), string(got)))
	}
}

// Nothing of ours is mounted below a caller's mount from which it would get to the host.
func TestMountsThatPropagateBack(t *testing.T) {
	for _, tc := range []struct {
		mount Mount
		gone  []string
	}{
		{Mount{Source: "/etc", Destination: "/etc", Propagation: "rshared"}, []string{"/etc/resolv.conf", "/etc/hosts", "/etc/hostname"}},
		{Mount{Source: "/etc", Destination: "/etc/", Propagation: "rslave"}, nil},
		{Mount{Source: "/sys", Destination: "/sys/", Propagation: "rshared"}, []string{"/sys", "/sys/fs/cgroup"}},
		{Mount{Source: "/sys", Destination: "/sys"}, []string{"/sys"}},
		{Mount{Source: "/dev", Destination: "/dev"}, []string{"/dev", "/dev/pts", "/dev/mqueue"}},
		{Mount{Source: "/dev", Destination: "/dev", Propagation: "rshared"}, []string{"/dev", "/dev/pts", "/dev/mqueue", "/dev/shm"}},
		{Mount{Source: "/d", Destination: "/dev/p", Propagation: "rshared"}, nil},
	} {
		in := base()
		plain := mounts(in)
		in.Mounts = []Mount{tc.mount}
		var got []string
		with := mounts(in)
		for _, m := range plain {
			if !slices.ContainsFunc(with, func(w specs.Mount) bool {
				return w.Destination == m.Destination && w.Source == m.Source && w.Type == m.Type
			}) {
				got = append(got, m.Destination)
			}
		}
		slices.Sort(got)
		slices.Sort(tc.gone)
		if !slices.Equal(got, tc.gone) {
			t.Errorf("%+v: takes the place of %q, want %q", tc.mount, got, tc.gone)
		}
	}
}

func TestCapabilities(t *testing.T) {
	available := []string{"CAP_CHOWN", "CAP_KILL", "CAP_SYS_ADMIN", "CAP_NET_RAW"}
	for _, tc := range []struct {
		name       string
		c          Capabilities
		privileged bool
		want       []string
	}{
		{"defaults that the daemon has", Capabilities{}, false, []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_RAW"}},
		{"add", Capabilities{Add: []string{"sys_admin"}}, false, []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_RAW", "CAP_SYS_ADMIN"}},
		{"drop", Capabilities{Drop: []string{"KILL"}}, false, []string{"CAP_CHOWN", "CAP_NET_RAW"}},
		{"add all", Capabilities{Add: []string{"ALL"}}, false, available},
		{
			"add all but one",
			Capabilities{Add: []string{"ALL"}, Drop: []string{"CHOWN"}},
			false,
			[]string{"CAP_KILL", "CAP_NET_RAW", "CAP_SYS_ADMIN"},
		},
		{"drop all but one", Capabilities{Drop: []string{"ALL"}, Add: []string{"CHOWN"}}, false, []string{"CAP_CHOWN"}},
		{"drop all", Capabilities{Drop: []string{"all"}}, false, []string{}},
		{"asked for by name though not available", Capabilities{Drop: []string{"ALL"}, Add: []string{"BPF"}}, false, []string{"CAP_BPF"}},
		{"privileged", Capabilities{Drop: []string{"ALL"}}, true, available},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.c.Available = available
			got, err := tc.c.sets(tc.privileged)
			if err != nil {
				t.Fatal(err)
			}
			want := slices.Sorted(slices.Values(tc.want))
			if !slices.Equal(got.Bounding, want) || !slices.Equal(got.Effective, want) || !slices.Equal(got.Permitted, want) || got.Ambient != nil {
				t.Errorf("got %v", got.Bounding)
			}
		})
	}
	for _, c := range []Capabilities{{Add: []string{"X"}}, {Drop: []string{""}}, {Ambient: []string{"CAP_"}}} {
		if _, err := c.sets(false); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

// The kubelet sends two empty lists for procMount: Unmasked, which came out as all defaults.
func TestCoveredPaths(t *testing.T) {
	defaults := [2][]string{DefaultMaskedPaths(), DefaultReadonlyPaths()}
	for name, tc := range map[string]struct {
		masked, readonly []string
		userns           string
		want             [2][]string
	}{
		"nothing":                      {want: defaults},
		"nothing, but not nil":         {masked: []string{}, readonly: []string{}, want: defaults},
		"nothing in a user namespace":  {userns: "/ns/user", want: [2][]string{}},
		"defaults in a user namespace": {masked: defaults[0], readonly: defaults[1], userns: "/ns/user", want: defaults},
		"one list":                     {masked: []string{"/proc/a"}, want: [2][]string{{"/proc/a"}, defaults[1]}},
		"one list in a user namespace": {readonly: []string{"/proc/a"}, userns: "/ns/user", want: [2][]string{defaults[0], {"/proc/a"}}},
		"both lists":                   {masked: []string{"/proc/a"}, readonly: []string{"/proc/b"}, want: [2][]string{{"/proc/a"}, {"/proc/b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			in := base()
			in.MaskedPaths, in.ReadonlyPaths, in.Namespaces.User = tc.masked, tc.readonly, tc.userns
			s, err := Container(in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, [2][]string{s.Linux.MaskedPaths, s.Linux.ReadonlyPaths}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What is dropped was left in the ambient set, which the kernel refuses: the container did not
// start.
func TestDroppedAmbientCapabilities(t *testing.T) {
	for _, tc := range []struct {
		c    Capabilities
		want []string
	}{
		{Capabilities{Ambient: []string{"CHOWN", "KILL"}, Drop: []string{"KILL"}}, []string{"CAP_CHOWN"}},
		{Capabilities{Ambient: []string{"KILL"}, Drop: []string{"KILL"}}, nil},
		{Capabilities{Ambient: []string{"KILL"}, Drop: []string{"ALL"}}, []string{"CAP_KILL"}},
	} {
		tc.c.Available = known
		got, err := tc.c.sets(false)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Ambient, tc.want) || !slices.Equal(got.Inheritable, tc.want) {
			t.Errorf("%+v: ambient %v, inheritable %v", tc.c, got.Ambient, got.Inheritable)
		}
		for _, name := range got.Ambient {
			if !slices.Contains(got.Permitted, name) {
				t.Errorf("%+v: %s is not permitted", tc.c, name)
			}
		}
	}
}

func TestCapabilitiesOf(t *testing.T) {
	got := CapabilitiesOf(1<<0 | 1<<40 | 1<<60)
	if !slices.Equal(got, []string{"CAP_CHOWN", "CAP_CHECKPOINT_RESTORE"}) {
		t.Errorf("got %v", got)
	}
}

func TestArgs(t *testing.T) {
	e, c := []string{"entry"}, []string{"cmd"}
	for _, tc := range []struct{ command, args, want []string }{
		{nil, nil, []string{"entry", "cmd"}},
		{nil, []string{"a"}, []string{"entry", "a"}},
		{[]string{"x"}, nil, []string{"x"}},
		{[]string{"x"}, []string{"a"}, []string{"x", "a"}},
	} {
		if got := Args(tc.command, tc.args, e, c); !slices.Equal(got, tc.want) {
			t.Errorf("command %q, args %q: got %q", tc.command, tc.args, got)
		}
	}
}

func TestDefaultSeccomp(t *testing.T) {
	allowed := func(in Input, call string) bool {
		t.Helper()
		in.Seccomp.Default = true
		s, err := Container(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, sc := range s.Linux.Seccomp.Syscalls {
			if sc.Action == specs.ActAllow && slices.Contains(sc.Names, call) && len(sc.Args) == 0 {
				return true
			}
		}
		return false
	}
	in := base()
	if !allowed(in, "read") || allowed(in, "mount") || allowed(in, "reboot") {
		t.Error("the default profile is not the default")
	}
	in.Capabilities.Add = []string{"SYS_ADMIN"}
	if !allowed(in, "mount") {
		t.Error("CAP_SYS_ADMIN does not open mount")
	}
	for i := range 2 * maxProfiles { // the cache is bounded and keeps no profile of others
		in.Capabilities.Drop = []string{known[i]}
		allowed(in, "read")
	}
	if len(profiles.byCaps) > maxProfiles {
		t.Errorf("%d profiles are kept", len(profiles.byCaps))
	}
}

func TestBadSeccomp(t *testing.T) {
	for _, profile := range []string{"{", `{"syscalls":[{"name":"a","names":["b"]}]}`} {
		in := base()
		in.Seccomp.JSON = profile
		if _, err := Container(in); err == nil || !strings.Contains(err.Error(), "seccomp") {
			t.Errorf("%s: %v", profile, err)
		}
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	s, err := Container(base())
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, s); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	var back specs.Spec
	if err := json.Unmarshal(b, &back); err != nil || back.Process.Args[0] != "sh" {
		t.Errorf("%v, %+v", err, back.Process)
	}
	if err := Write(filepath.Join(dir, "gone"), s); err == nil {
		t.Error("written into a directory that is not there")
	}
}
