package ocispec

import "github.com/opencontainers/runtime-spec/specs-go"

// Init is what a pod init's spec depends on.
type Init struct {
	Identity Identity
	Root     string // a directory that has only the mount points
	Path     string // of the program in the root, and its args[0]
	Binary   string // host path of the program
	// Namespaces are the pod's; the PID namespace is made anew.
	Namespaces  Namespaces
	CgroupsPath string
}

// initUser is who a pod's init runs as: nobody that anything else runs as.
const initUser = 65535

// PodInit makes the spec of the process that holds a pod's PID namespace: no
// capability, nothing writable, nothing but its own program to see.
func PodInit(in Init) *specs.Spec {
	user := uint32(initUser)
	for _, m := range in.Namespaces.UIDs {
		user = min(user, m.Size-1) // the last id that is mapped
	}
	adj := -998 // as peers' pause containers; the engine clamps it to what it may set
	return &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: in.Root, Readonly: true},
		Process: &specs.Process{
			User: specs.User{UID: user, GID: user},
			Args: []string{in.Path}, Cwd: "/",
			Env:             []string{"GOMAXPROCS=1"},
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			OOMScoreAdj:     &adj,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
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
			MaskedPaths:   DefaultMaskedPaths(),
			ReadonlyPaths: DefaultReadonlyPaths(),
		},
	}
}
