package ocispec

import "github.com/opencontainers/runtime-spec/specs-go"

// Namespaces are the paths of namespaces to join. An empty path means a new one,
// unless the Host field says that the host's is used.
type Namespaces struct {
	Net, IPC, UTS, PID        string
	HostNet, HostIPC, HostPID bool
	// User is a user namespace with these ids; empty is the host's.
	User       string
	UIDs, GIDs []specs.LinuxIDMapping
}

// list is the spec's namespaces. The UTS namespace goes with the network's: a pod on
// the host's network has the host's name. A cgroup namespace hides the host's
// hierarchies. On cgroup v1 it also spares a bind mount and two remounts for each of
// them, a millisecond in all: the runtime mounts the hierarchy itself.
func (n Namespaces) list(ownCgroup bool) []specs.LinuxNamespace {
	out := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	add := func(host bool, kind specs.LinuxNamespaceType, path string) {
		if !host {
			out = append(out, specs.LinuxNamespace{Type: kind, Path: path})
		}
	}
	add(n.HostNet, specs.NetworkNamespace, n.Net)
	add(n.HostIPC, specs.IPCNamespace, n.IPC)
	add(n.HostNet, specs.UTSNamespace, n.UTS)
	add(n.HostPID, specs.PIDNamespace, n.PID)
	add(!ownCgroup, specs.CgroupNamespace, "")
	add(n.User == "", specs.UserNamespace, n.User)
	return out
}
