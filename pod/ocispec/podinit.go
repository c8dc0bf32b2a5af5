package ocispec

import "github.com/opencontainers/runtime-spec/specs-go"

// Init is what a pod init's spec depends on.
type Init struct {
	Identity Identity
	Root     string // a directory that has only the mount points
	Path     string // of the program in the root, and its args[0]
	Binary   string // host path of the program
	// Namespaces are the pod's; the PID namespace is a new one.
	Namespaces  Namespaces
	CgroupsPath string
	// Seccomp, AppArmor and ProcessLabel are the sandbox's. The zero Seccomp is the default one.
	Seccomp      Seccomp
	AppArmor     string // profile name, "" for none
	ProcessLabel string // SELinux
	// Foreign says that another OCI runtime makes it; runc takes no id above 2^31-1.
	Foreign bool
	// Unlimited leaves out the limits of memory and processes.
	Unlimited bool
}

// initUser is who a pod's init runs as, an id that no container is started with: those end at
// 2^31-1. A process that takes it with CAP_SETUID still cannot trace the init, which is not
// dumpable.
const (
	initUser        = 1<<32 - 2
	foreignInitUser = 1<<31 - 1
)

// The init uses some 160 kB and one process. The limits leave room for other OCI runtimes, whose
// programs of several threads start it inside its cgroup.
const (
	initMemory = 32 << 20
	initPids   = 64
)

// PodInit makes the spec of the process that holds a pod's PID namespace: no
// capability, nothing writable, nothing but its own program to see. The program limits
// its system calls itself, and hides from tracers, as its first act; until then it has the
// sandbox's filter. Before it is executed it is hidden, too. A container that is started
// meanwhile, and has its user, could trace it for the moment between the two. It would gain a
// process under this filter, in this cgroup, within the pod's limits, and no privilege.
func PodInit(in Init) (*specs.Spec, error) {
	user := uint32(initUser)
	if in.Foreign {
		user = foreignInitUser
	}
	for _, m := range in.Namespaces.UIDs {
		user = min(user, m.Size-1) // the last id that is mapped
	}
	adj := -998 // as peers' pause containers; the engine clamps it to what it may set
	s := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: in.Root, Readonly: true},
		Process: &specs.Process{
			User: specs.User{UID: user, GID: user},
			Args: []string{in.Path}, Cwd: "/",
			Env:             []string{"GOMAXPROCS=1"},
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			ApparmorProfile: in.AppArmor, SelinuxLabel: in.ProcessLabel,
			OOMScoreAdj: &adj,
		},
		Mounts: []specs.Mount{
			// Only processes, which the pod's containers see, too: nothing is left to mask. Holders
			// of CAP_SYS_PTRACE get here by /proc/1/root.
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev", "subset=pid"}},
			// The runtime opens /dev/null in it. On what /run is to systemd (nodev) that
			// needs a file system of its own.
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "mode=755", "size=64k"}},
			{Destination: in.Path, Type: "bind", Source: in.Binary, Options: []string{"bind", "ro", "nosuid", "nodev", "rprivate"}},
		},
		Annotations: in.Identity.annotations("sandbox", nil),
		Linux: &specs.Linux{
			Namespaces:  in.Namespaces.list(false),
			UIDMappings: in.Namespaces.UIDs, GIDMappings: in.Namespaces.GIDs,
			CgroupsPath: in.CgroupsPath,
			Resources: &specs.LinuxResources{
				Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
			},
		},
	}
	if !in.Unlimited {
		memory, pids := int64(initMemory), int64(initPids)
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &memory}
		s.Linux.Resources.Pids = &specs.LinuxPids{Limit: &pids}
	}
	if in.Seccomp == (Seccomp{}) {
		in.Seccomp.Default = true
	}
	var err error
	s.Linux.Seccomp, err = in.Seccomp.load(s)
	return s, err
}
