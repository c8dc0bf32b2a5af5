package validate_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/validate"
)

func validSpec() *specs.Spec {
	return &specs.Spec{
		Version: "1.2.0",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: []string{"/bin/true"}, Cwd: "/", Env: []string{"A=b"}},
		Linux: &specs.Linux{
			Namespaces:  []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.UTSNamespace}, {Type: specs.UserNamespace}},
			UIDMappings: []specs.LinuxIDMapping{{HostID: 1000, Size: 1000}},
			GIDMappings: []specs.LinuxIDMapping{{HostID: 1000, Size: 1000}},
		},
	}
}

func bundle(t testing.TB) string {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestValidSpecs(t *testing.T) {
	dir := bundle(t)
	if err := validate.Spec(validSpec(), dir); err != nil {
		t.Error(err)
	}
	absolute := validSpec()
	absolute.Root.Path, absolute.Linux = filepath.Join(dir, "rootfs"), nil
	if err := validate.Spec(absolute, "/elsewhere"); err != nil {
		t.Error(err)
	}
}

// Each case spoils a valid spec in one way; the error names the field.
func TestInvalidSpecs(t *testing.T) {
	ptr := func(n int64) *int64 { return &n }
	cases := map[string]struct {
		spoil func(*specs.Spec)
		says  string
	}{
		"no version":         {func(s *specs.Spec) { s.Version = "" }, "ociVersion is missing"},
		"version of no form": {func(s *specs.Spec) { s.Version = "one" }, "ociVersion \"one\" is no semantic version"},
		"later version":      {func(s *specs.Spec) { s.Version = "2.0.0" }, "is not supported"},
		"no process":         {func(s *specs.Spec) { s.Process = nil }, "process is missing"},
		"no args":            {func(s *specs.Spec) { s.Process.Args = nil }, "process.args is empty"},
		"empty program":      {func(s *specs.Spec) { s.Process.Args = []string{""} }, "process.args is empty"},
		"zero byte in args":  {func(s *specs.Spec) { s.Process.Args = []string{"a\x00b"} }, "process.args[0]"},
		"no cwd":             {func(s *specs.Spec) { s.Process.Cwd = "" }, "process.cwd is empty"},
		"relative cwd":       {func(s *specs.Spec) { s.Process.Cwd = "here" }, "process.cwd \"here\" is not absolute"},
		"env without =":      {func(s *specs.Spec) { s.Process.Env = []string{"A"} }, "process.env[0]"},
		"env without name":   {func(s *specs.Spec) { s.Process.Env = []string{"=a"} }, "process.env[0]"},
		"uid -1":             {func(s *specs.Spec) { s.Process.User.UID = 1<<32 - 1 }, "process.user.uid"},
		"gid -1":             {func(s *specs.Spec) { s.Process.User.GID = 1<<32 - 1 }, "process.user.gid"},
		"additional gid -1":  {func(s *specs.Spec) { s.Process.User.AdditionalGids = []uint32{1<<32 - 1} }, "additionalGids[0]"},
		"umask":              {func(s *specs.Spec) { m := uint32(0o1000); s.Process.User.Umask = &m }, "process.user.umask"},
		"oom score":          {func(s *specs.Spec) { n := 1001; s.Process.OOMScoreAdj = &n }, "process.oomScoreAdj"},
		"console size":       {func(s *specs.Spec) { s.Process.ConsoleSize = &specs.Box{Height: 1 << 16} }, "process.consoleSize"},
		"unknown rlimit":     {func(s *specs.Spec) { s.Process.Rlimits = []specs.POSIXRlimit{{Type: "NOFILE"}} }, "process.rlimits[0].type"},
		"rlimit upside down": {func(s *specs.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 2, Hard: 1}}
		}, "above the hard limit"},
		"rlimit twice": {func(s *specs.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_CPU"}, {Type: "RLIMIT_CPU"}}
		}, "duplicate"},
		"no root":            {func(s *specs.Spec) { s.Root = nil }, "root is missing"},
		"empty root":         {func(s *specs.Spec) { s.Root.Path = "" }, "root.path is empty"},
		"root not there":     {func(s *specs.Spec) { s.Root.Path = "nowhere" }, "root.path \"nowhere\" cannot be used"},
		"root is a file":     {func(s *specs.Spec) { s.Root.Path = "/proc/version" }, "is not a directory"},
		"mount to nowhere":   {func(s *specs.Spec) { s.Mounts = []specs.Mount{{Source: "/"}} }, "mounts[0].destination is empty"},
		"zero byte in mount": {func(s *specs.Spec) { s.Mounts = []specs.Mount{{Destination: "/a", Source: "\x00"}} }, "mounts[0].source"},
		"bind of nothing": {func(s *specs.Spec) {
			s.Mounts = []specs.Mount{{Destination: "/a", Options: []string{"rbind"}}}
		}, "mounts[0].source is empty"},
		"relative hook": {func(s *specs.Spec) { s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "x"}}} }, "hooks.poststop[0].path"},
		"hook timeout": {func(s *specs.Spec) {
			n := 0
			s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/x", Timeout: &n}}}
		}, "hooks.poststop[0].timeout"},
		"unknown namespace":  {func(s *specs.Spec) { s.Linux.Namespaces[0].Type = "moon" }, "linux.namespaces[0].type"},
		"namespace twice":    {func(s *specs.Spec) { s.Linux.Namespaces[1].Type = specs.MountNamespace }, "duplicate"},
		"relative namespace": {func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "x" }, "linux.namespaces[0].path"},
		"lost namespace":     {func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/no/such/ns" }, "cannot be joined"},
		"no mount namespace": {func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] }, "lacks \"mount\""},
		"hostname, no uts":   {func(s *specs.Spec) { s.Hostname = "h"; s.Linux.Namespaces = s.Linux.Namespaces[:1] }, "hostname"},
		"domainname, no uts": {func(s *specs.Spec) { s.Domainname = "d"; s.Linux.Namespaces = s.Linux.Namespaces[:1] }, "domainname"},
		"mapping, no userns": {func(s *specs.Spec) {
			s.Linux.UIDMappings = []specs.LinuxIDMapping{{Size: 1}}
			s.Linux.Namespaces = s.Linux.Namespaces[:1]
		}, "linux.uidMappings"},
		"mapping of nothing": {func(s *specs.Spec) { s.Linux.GIDMappings = []specs.LinuxIDMapping{{}} }, "linux.gidMappings[0].size"},
		"mapping too long": {func(s *specs.Spec) {
			s.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: 10, Size: 1<<32 - 5}}
		}, "linux.uidMappings[0]"},
		"relative mask":      {func(s *specs.Spec) { s.Linux.MaskedPaths = []string{"x"} }, "linux.maskedPaths[0]"},
		"relative read-only": {func(s *specs.Spec) { s.Linux.ReadonlyPaths = []string{"x"} }, "linux.readonlyPaths[0]"},
		"relative device":    {func(s *specs.Spec) { s.Linux.Devices = []specs.LinuxDevice{{Path: "x"}} }, "linux.devices[0].path"},
		"sysctl path":        {func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"net/../../x": "1"} }, "linux.sysctl"},
		"cgroup escape":      {func(s *specs.Spec) { s.Linux.CgroupsPath = "/a/../../b" }, "linux.cgroupsPath"},
		"device access": {func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "x"}}}
		}, "devices[0].access"},
		"device type": {func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "r", Type: "x"}}}
		}, "devices[0].type"},
		"memory below -1": {func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr(-2)}}
		}, "memory.limit"},
		"swap below memory": {func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr(9), Swap: ptr(8)}}
		}, "memory.swap"},
		"swappiness": {func(s *specs.Spec) {
			n := uint64(101)
			s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Swappiness: &n}}
		}, "swappiness"},
		"cpu quota": {func(s *specs.Spec) { s.Linux.Resources = &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: ptr(-2)}} }, "cpu.quota"},
		"cpu period": {func(s *specs.Spec) {
			n := uint64(7)
			s.Linux.Resources = &specs.LinuxResources{CPU: &specs.LinuxCPU{Period: &n}}
		}, "cpu.period"},
		"zero byte in cgroup": {func(s *specs.Spec) { s.Linux.CgroupsPath = "\x00" }, "linux.cgroupsPath"},
	}
	dir := bundle(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			spec := validSpec()
			c.spoil(spec)
			err := validate.Spec(spec, dir)
			if !errors.Is(err, runtime.ErrInvalidSpec) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %q, want ErrInvalidSpec saying %q", err, c.says)
			}
		})
	}
	if err := validate.Spec(nil, dir); !errors.Is(err, runtime.ErrInvalidSpec) {
		t.Errorf("nil spec: %v", err)
	}
	if err := validate.Process(nil); !errors.Is(err, runtime.ErrInvalidSpec) {
		t.Errorf("nil process: %v", err)
	}
}

func TestValidateSpecOnHostMounts(t *testing.T) {
	spec, dir := validSpec(), bundle(t)
	spec.Linux.Namespaces = spec.Linux.Namespaces[1:]
	if err := validate.SpecOnHostMounts(spec, dir); err != nil {
		t.Errorf("without a mount namespace: %v", err)
	}
	spec.Process.Cwd = "x"
	if err := validate.SpecOnHostMounts(spec, dir); !errors.Is(err, runtime.ErrInvalidSpec) {
		t.Errorf("invalid otherwise: %v", err)
	}
}

// FuzzSpec looks for panics, and for errors of another kind than ErrInvalidSpec,
// in everything that a config.json goes through before a container is made.
func FuzzSpec(f *testing.F) {
	good, err := json.Marshal(validSpec())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"ociVersion":"1.0.0","process":{"args":["x"],"cwd":"/","rlimits":[{"type":"RLIMIT_CPU"}]},"root":{"path":"/"},"linux":{"resources":{"memory":{"limit":-5}}}}`))
	f.Add([]byte(`{"process":null`))
	f.Add([]byte("{}\n{}"))
	f.Add([]byte(`{"hooks":{"poststop":[{"path":"/x","timeout":-1}]},"root":7}`))
	dir := f.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		spec, err := runtime.LoadSpec(dir)
		if err == nil {
			err = validate.Spec(spec, dir)
		}
		if err != nil && !errors.Is(err, runtime.ErrInvalidSpec) {
			t.Errorf("error of another kind: %v", err)
		}
	})
}
