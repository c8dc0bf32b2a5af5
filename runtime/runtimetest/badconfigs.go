package runtimetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// BadConfig is a config.json that no engine may make a container of: a usual one with one
// field changed.
type BadConfig struct {
	Name string
	// Field is where Value, JSON, is put into the configuration, by dots. Without a field Value is
	// the whole file.
	Field, Value string
	// Says is what the error has to say: the field, and what is wrong with it.
	Says string
}

// Write writes the bundle's config.json. spec is the configuration to spoil.
func (b BadConfig) Write(bundle string, spec *specs.Spec) error {
	text := []byte(b.Value)
	if b.Field != "" {
		var err error
		if text, err = spoil(spec, b.Field, b.Value); err != nil {
			return fmt.Errorf("%s: %w", b.Name, err)
		}
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o600)
}

func spoil(spec *specs.Spec, field, value string) ([]byte, error) {
	good, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	var all map[string]any
	dec := json.NewDecoder(bytes.NewReader(good))
	dec.UseNumber()
	if err := dec.Decode(&all); err != nil {
		return nil, err
	}
	at, names := all, strings.Split(field, ".")
	for _, name := range names[:len(names)-1] {
		next, ok := at[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[name] = next
		}
		at = next
	}
	at[names[len(names)-1]] = json.RawMessage(value)
	return json.Marshal(all)
}

// BadConfigs are those that every engine refuses before it makes anything. The bundle has a
// directory rootfs, a file "file" and a symbolic link "loop" to itself (see SpoilBundle).
func BadConfigs() []BadConfig {
	const user = `[{"type": "mount"}, {"type": "uts"}, {"type": "network"}, {"type": "ipc"}, {"type": "user"}]`
	return []BadConfig{
		{"empty file", "", "", "config.json:1:1: empty file"},
		{"no JSON", "", "{\n  nonsense\n}", "config.json:2:3: invalid OCI spec: invalid character 'n'"},
		{"half an object", "", `{"process": {`, "config.json:1:14: invalid OCI spec"},
		{"text behind", "", "{}\nx", "config.json:2:1: text after the JSON object"},
		{"array", "", "[]", "must be specs.Spec, not array"},
		{"key twice", "", "{\"hostname\": \"a\",\n \"hostname\": \"b\"}", `config.json:2:2: duplicate key "hostname"`},
		{"key twice, deep, one escaped", "", `{"process": {"cwd": "/", "\u0063wd": "/a"}}`, `duplicate key "cwd"`},
		{"number for a string", "process.cwd", "7", "process.cwd must be string, not number"},
		{"string for a list", "process.args", `"sh"`, "process.args must be []string, not string"},
		{"fraction", "process.user", `{"uid": 1.5}`, "uid must be uint32, not number 1.5"},
		{"uid too large", "process.user", `{"uid": 4294967296}`, "uid must be uint32"},
		{"nothing", "", "{}", "ociVersion is missing"},

		{"no version", "ociVersion", `""`, "ociVersion is missing, set it to"},
		{"version of no form", "ociVersion", `"new"`, `ociVersion "new" is no semantic version`},
		{"later version", "ociVersion", `"2.0.0"`, `ociVersion "2.0.0" is not supported`},

		{"no root", "root", "null", "root is missing"},
		{"root of no path", "root.path", `""`, "root.path is empty"},
		{"root that is not there", "root.path", `"nowhere"`, `root.path "nowhere" cannot be used`},
		{"root is a file", "root.path", `"file"`, `root.path "file" is not a directory`},
		{"root is a loop of links", "root.path", `"loop"`, `root.path "loop" cannot be used: stat`},
		{"root with zero byte", "root.path", `"root\u0000fs"`, "root.path"},

		{"no process", "process", "null", "process is missing"},
		{"no args", "process.args", "[]", "process.args is empty"},
		{"args with zero byte", "process.args", `["a", "b\u0000"]`, "process.args[1]"},
		{"cwd relative", "process.cwd", `"here"`, `process.cwd "here" is not absolute`},
		{"env without =", "process.env", `["A=", "B"]`, `process.env[1] "B" is not of the form NAME=value`},
		{"env with zero byte", "process.env", `["A=\u0000"]`, "process.env[0]"},
		{"uid -1", "process.user", `{"uid": 4294967295}`, "process.user.uid 4294967295 is out of range"},
		{"group -1", "process.user", `{"additionalGids": [4294967295]}`, "process.user.additionalGids[0]"},
		{"umask", "process.user", `{"umask": 512}`, "process.user.umask"},
		{"unknown rlimit", "process.rlimits", `[{"type": "RLIMIT_NOPE"}]`, `process.rlimits[0].type "RLIMIT_NOPE"`},
		{"rlimit twice", "process.rlimits", `[{"type": "RLIMIT_CPU"}, {"type": "RLIMIT_CPU"}]`, "process.rlimits[1].type"},
		{"rlimit soft above hard", "process.rlimits", `[{"type": "RLIMIT_CPU", "soft": 2, "hard": 1}]`, "process.rlimits[0].soft 2 is above"},
		{"negative rlimit", "process.rlimits", `[{"type": "RLIMIT_CPU", "soft": -1}]`, "soft must be uint64"},
		{"oom score", "process.oomScoreAdj", "2000", "process.oomScoreAdj 2000 is out of range"},
		{"console size", "process.consoleSize", `{"height": 70000, "width": 1}`, "process.consoleSize 1x70000"},
		{"unknown policy", "process.scheduler", `{"policy": "SCHED_NOPE"}`, `process.scheduler.policy "SCHED_NOPE"`},
		{"no policy", "process.scheduler", `{"nice": 1}`, "process.scheduler.policy"},
		{"priority of no use", "process.scheduler", `{"policy": "SCHED_OTHER", "priority": 3}`, "process.scheduler.priority"},
		{"priority out of range", "process.scheduler", `{"policy": "SCHED_FIFO", "priority": 100}`, "process.scheduler.priority 100"},
		{"nice", "process.scheduler", `{"policy": "SCHED_OTHER", "nice": 20}`, "process.scheduler.nice 20"},
		{"deadline of no use", "process.scheduler", `{"policy": "SCHED_OTHER", "deadline": 3}`, "only SCHED_DEADLINE"},
		{"scheduler flag", "process.scheduler", `{"policy": "SCHED_OTHER", "flags": ["X"]}`, "process.scheduler.flags[0]"},
		{"unknown I/O class", "process.ioPriority", `{"class": "IOPRIO_NOPE", "priority": 1}`, "process.ioPriority.class"},
		{"I/O priority", "process.ioPriority", `{"class": "IOPRIO_CLASS_BE", "priority": 8}`, "process.ioPriority.priority 8"},
		{"CPU affinity", "process.execCPUAffinity", `{"initial": "all"}`, `process.execCPUAffinity.initial "all"`},
		{"AppArmor with zero byte", "process.apparmorProfile", `"a\u0000"`, "process.apparmorProfile"},

		{"hostname without uts", "linux.namespaces", `[{"type": "mount"}]`, `hostname "boat" needs a uts namespace`},
		{"hostname too long", "hostname", `"` + strings.Repeat("x", 65) + `"`, "has 65 bytes, at most 64"},
		{"hostname with zero byte", "hostname", `"a\u0000"`, "hostname"},

		{"mount to nowhere", "mounts", `[{"type": "tmpfs"}]`, "mounts[0].destination is empty"},
		{"mount of no type", "mounts", `[{"destination": "/x"}]`, "mounts[0].type is empty"},
		{"bind of nothing", "mounts", `[{"destination": "/x", "type": "bind"}]`, "mounts[0].source is empty"},
		{
			"mount in proc", "mounts", `[{"destination": "/proc/self/attr", "type": "tmpfs"}]`,
			`mounts[0].destination "/proc/self/attr" is inside /proc`,
		},
		{"mount in proc by dots", "mounts", `[{"destination": "/a/../proc//1", "type": "tmpfs"}]`, "is inside /proc"},
		{"something else at /proc", "mounts", `[{"destination": "/proc", "type": "tmpfs"}]`, "not of type proc"},
		{
			"bind with an option of file systems", "mounts", `[{"destination": "/x", "source": "/tmp", "type": "bind", "options": ["size=1"]}]`,
			`mounts[0].options[0] "size=1"`,
		},
		{"mount with zero byte", "mounts", `[{"destination": "/x", "type": "tmpfs", "options": ["a\u0000"]}]`, "mounts[0].options[0]"},
		{
			"mapped tmpfs", "mounts", `[{"destination": "/x", "type": "tmpfs", "uidMappings": [{"size": 1}]}]`,
			"only bind mounts can have id mappings",
		},
		{
			"half mapped", "mounts", `[{"destination": "/x", "source": "/tmp", "type": "bind", "uidMappings": [{"size": 1}]}]`,
			"mounts[0].gidMappings is missing",
		},

		{"relative hook", "hooks", `{"prestart": [{"path": "hook"}]}`, `hooks.prestart[0].path "hook" is not absolute`},
		{"negative timeout", "hooks", `{"poststop": [{"path": "/x", "timeout": -1}]}`, "hooks.poststop[0].timeout -1"},
		{"hook's environment", "hooks", `{"createRuntime": [{"path": "/x", "env": ["A"]}]}`, "hooks.createRuntime[0].env[0]"},
		{"hook with zero byte", "hooks", `{"poststart": [{"path": "/x", "args": ["\u0000"]}]}`, "hooks.poststart[0].args[0]"},

		{"unknown namespace", "linux.namespaces", `[{"type": "moon"}]`, `linux.namespaces[0].type "moon"`},
		{"namespace twice", "linux.namespaces", `[{"type": "mount"}, {"type": "mount"}]`, "linux.namespaces[1].type"},
		{"relative namespace", "linux.namespaces", `[{"type": "mount"}, {"type": "uts", "path": "x"}]`, "linux.namespaces[1].path"},
		{"namespace that is not there", "linux.namespaces", `[{"type": "mount"}, {"type": "uts", "path": "/no/ns"}]`, "cannot be joined"},
		{"mapping without namespace", "linux.uidMappings", `[{"size": 1}]`, "linux.uidMappings needs a user namespace"},
		{"namespace without mapping", "linux.namespaces", user, "linux.uidMappings is missing"},
		{"mapping of size 0", "linux", `{"namespaces": ` + user + `, "uidMappings": [{"size": 0}]}`, "linux.uidMappings[0].size is 0"},
		{
			"mapping past the end", "linux", `{"namespaces": ` + user + `, "uidMappings": [{"hostID": 9, "size": 4294967290}]}`,
			"go past the highest id",
		},
		{"mapping that overlaps inside", "linux", `{"namespaces": ` + user +
			`, "uidMappings": [{"size": 10}, {"containerID": 5, "hostID": 100, "size": 1}]}`, "linux.uidMappings maps id 5 of the container twice"},
		{"mapping that overlaps outside", "linux", `{"namespaces": ` + user +
			`, "uidMappings": [{"size": 10}, {"containerID": 50, "hostID": 3, "size": 1}]}`, "linux.uidMappings maps id 3 of the host twice"},
		{
			"mapping without root", "linux", `{"namespaces": ` + user + `, "uidMappings": [{"containerID": 1, "size": 10}]}`,
			"linux.uidMappings does not map id 0",
		},
		{
			"time offsets without namespace", "linux.timeOffsets", `{"monotonic": {"secs": 1}}`,
			"linux.timeOffsets.monotonic needs a time namespace",
		},
		{"unknown clock", "linux.timeOffsets", `{"realtime": {"secs": 1}}`, `linux.timeOffsets "realtime"`},
		{"relative mask", "linux.maskedPaths", `["x"]`, "linux.maskedPaths[0]"},
		{"relative read-only path", "linux.readonlyPaths", `["x"]`, "linux.readonlyPaths[0]"},
		{"unknown propagation", "linux.rootfsPropagation", `"loud"`, `linux.rootfsPropagation "loud" is unknown`},
		{"unknown personality", "linux.personality", `{"domain": "BSD"}`, "linux.personality.domain"},
		{"class of service that climbs", "linux.intelRdt", `{"closID": "../x"}`, `linux.intelRdt.closID "../x"`},
		{"schema of two lines", "linux.intelRdt", `{"schemata": ["L3:0=f\nMB:0=1"]}`, "linux.intelRdt.schemata[0]"},
		{"schema of memory bandwidth", "linux.intelRdt", `{"memBwSchema": "L3:0=f"}`, "linux.intelRdt.memBwSchema"},
		{"unknown memory policy", "linux.memoryPolicy", `{"mode": "MPOL_NOPE"}`, `linux.memoryPolicy.mode "MPOL_NOPE"`},
		{"memory policy of no nodes", "linux.memoryPolicy", `{"mode": "MPOL_BIND"}`, "linux.memoryPolicy.nodes is missing"},
		{
			"memory policy with nodes of no use", "linux.memoryPolicy", `{"mode": "MPOL_LOCAL", "nodes": "0"}`,
			`linux.memoryPolicy.nodes "0" is of no use`,
		},
		{"nodes of the memory policy", "linux.memoryPolicy", `{"mode": "MPOL_BIND", "nodes": "all"}`, `linux.memoryPolicy.nodes "all"`},
		{"flag of the memory policy", "linux.memoryPolicy", `{"mode": "MPOL_BIND", "nodes": "0", "flags": ["X"]}`, "linux.memoryPolicy.flags[0]"},
		{"relative device", "linux.devices", `[{"path": "x", "type": "c"}]`, "linux.devices[0].path"},
		{"unknown device type", "linux.devices", `[{"path": "/dev/x", "type": "q"}]`, `linux.devices[0].type "q"`},
		{"negative device", "linux.devices", `[{"path": "/dev/x", "type": "c", "major": -3}]`, "linux.devices[0].major -3"},
		{"device out of range", "linux.devices", `[{"path": "/dev/x", "type": "c", "minor": 1048576}]`, "linux.devices[0].minor 1048576"},
		{"sysctl of the host", "linux.sysctl", `{"kernel.panic": "1"}`, "linux.sysctl kernel.panic is not in a namespace"},
		{"sysctl that climbs", "linux.sysctl", `{"net/../kernel/panic": "1"}`, "is no name of a kernel parameter"},
		{"sysctl that climbs once it is a path", "linux.sysctl", `{"net.//.kernel.panic": "1"}`, "is no name of a kernel parameter"},
		{"sysctl of the host name", "linux.sysctl", `{"kernel.hostname": "x"}`, "set hostname instead"},
		{"sysctl of the host's users", "linux.sysctl", `{"user.max_user_namespaces": "1"}`, "needs a user namespace"},
		{
			"sysctl of the host's network", "linux", `{"namespaces": [{"type": "mount"}, {"type": "uts"}], "sysctl": {"net.core.somaxconn": "1"}}`,
			"needs a network namespace",
		},
		{
			"sysctl of the host's network, joined", "linux",
			`{"namespaces": [{"type": "mount"}, {"type": "uts"}, {"type": "network", "path": "/proc/self/ns/net"}], "sysctl": {"net.core.somaxconn": "1"}}`, "would change the host",
		},
		{"network device", "linux.netDevices", `{"eth/0": {}}`, `linux.netDevices "eth/0"`},
		{"network device with a long name", "linux.netDevices", `{"eth0": {"name": "a-name-that-is-too-long"}}`, "linux.netDevices.eth0.name"},
		{"cgroup that climbs", "linux.cgroupsPath", `"/a/../../b"`, "linux.cgroupsPath"},

		{"seccomp default action", "linux.seccomp", `{"defaultAction": "SCMP_ACT_NOPE"}`, "linux.seccomp.defaultAction"},
		{
			"seccomp architecture", "linux.seccomp", `{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_NOPE"]}`,
			"linux.seccomp.architectures[0]",
		},
		{"seccomp flag", "linux.seccomp", `{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["NOPE"]}`, "linux.seccomp.flags[0]"},
		{
			"seccomp action", "linux.seccomp", `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "NOPE"}]}`,
			"linux.seccomp.syscalls[0].action",
		},
		{
			"seccomp rule of nothing", "linux.seccomp", `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"action": "SCMP_ACT_ERRNO"}]}`,
			"linux.seccomp.syscalls[0].names",
		},
		{
			"seccomp operator", "linux.seccomp",
			`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ERRNO", "args": [{"op": "NOPE"}]}]}`,
			"linux.seccomp.syscalls[0].args[0].op",
		},
		{
			"seccomp argument", "linux.seccomp",
			`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 6, "op": "SCMP_CMP_EQ"}]}]}`, "linux.seccomp.syscalls[0].args[0].index 6",
		},
		{
			"seccomp agent", "linux.seccomp", `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_NOTIFY"}]}`,
			"set linux.seccomp.listenerPath",
		},

		{"memory", "linux.resources.memory", `{"limit": -2}`, "linux.resources.memory.limit -2"},
		{"memory that is no number", "linux.resources.memory", `{"limit": "1G"}`, "must be int64, not string"},
		{"swap below memory", "linux.resources.memory", `{"limit": 9, "swap": 8}`, "linux.resources.memory.swap 8"},
		{"swappiness", "linux.resources.memory", `{"swappiness": 101}`, "linux.resources.memory.swappiness"},
		{"processes", "linux.resources.pids", `{"limit": -2}`, "linux.resources.pids.limit -2"},
		{"CPU shares", "linux.resources.cpu", `{"shares": 1}`, "linux.resources.cpu.shares 1"},
		{"CPU quota", "linux.resources.cpu", `{"quota": 10}`, "linux.resources.cpu.quota 10"},
		{"CPU period", "linux.resources.cpu", `{"period": 10}`, "linux.resources.cpu.period 10"},
		{"CPU idle", "linux.resources.cpu", `{"idle": 2}`, "linux.resources.cpu.idle 2"},
		{"CPUs", "linux.resources.cpu", `{"cpus": "0-"}`, `linux.resources.cpu.cpus "0-"`},
		{"CPUs backwards", "linux.resources.cpu", `{"cpus": "3-1"}`, "linux.resources.cpu.cpus"},
		{"memory nodes", "linux.resources.cpu", `{"mems": "x"}`, "linux.resources.cpu.mems"},
		{"block I/O weight", "linux.resources.blockIO", `{"weight": 9}`, "linux.resources.blockIO.weight 9"},
		{
			"block I/O weight of a device", "linux.resources.blockIO", `{"weightDevice": [{"major": 8, "minor": 0, "weight": 1001}]}`,
			"linux.resources.blockIO.weightDevice[0].weight 1001",
		},
		{
			"block I/O device", "linux.resources.blockIO", `{"throttleReadBpsDevice": [{"major": -8, "minor": 0, "rate": 1}]}`,
			"linux.resources.blockIO.throttleReadBpsDevice[0] -8:0",
		},
		{"huge pages", "linux.resources.hugepageLimits", `[{"pageSize": "2 MiB", "limit": 1}]`, "linux.resources.hugepageLimits[0].pageSize"},
		{"RDMA", "linux.resources.rdma", `{"mlx5_1": {}}`, "linux.resources.rdma.mlx5_1 has no limit"},
		{
			"network priority", "linux.resources.network", `{"priorities": [{"name": "a b", "priority": 1}]}`,
			"linux.resources.network.priorities[0].name",
		},
		{"unified", "linux.resources.unified", `{"../memory.max": "1"}`, "linux.resources.unified"},
		{"device rule of no access", "linux.resources.devices", `[{"allow": true}]`, "linux.resources.devices[0].access"},
		{
			"device rule of unknown access", "linux.resources.devices", `[{"allow": true, "access": "rx"}]`,
			`linux.resources.devices[0].access "rx"`,
		},
		{"device rule of a alone", "linux.resources.devices", `[{"allow": true, "access": "a"}]`, `linux.resources.devices[0].access "a"`},
		{"device rule of no type", "linux.resources.devices", `[{"allow": true, "access": "r", "type": "x"}]`, "linux.resources.devices[0].type"},
		{
			"device rule with a negative number", "linux.resources.devices", `[{"allow": true, "access": "r", "type": "c", "major": -2}]`,
			"linux.resources.devices[0].major -2",
		},
	}
}

// SpoilBundle makes what BadConfigs refer to.
func SpoilBundle(bundle string) error {
	if err := os.WriteFile(filepath.Join(bundle, "file"), nil, 0o600); err != nil {
		return err
	}
	return os.Symlink("loop", filepath.Join(bundle, "loop"))
}
