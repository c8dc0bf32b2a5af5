package cri

import (
	"net/netip"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// podConfig converts and checks a pod's config. Everything a name may contain, and
// what this node supports, is checked by pod/.
func podConfig(c *runtimeapi.PodSandboxConfig, handler string) (podconfig.Pod, error) {
	if c == nil {
		return podconfig.Pod{}, invalid("config", "is required")
	}
	if c.GetWindows() != nil {
		return podconfig.Pod{}, invalid("config.windows", "this node runs Linux")
	}
	meta := c.GetMetadata()
	if err := required("config.metadata.name", meta.GetName()); err != nil {
		return podconfig.Pod{}, err
	}
	out := podconfig.Pod{
		Name: meta.GetName(), UID: meta.GetUid(), Namespace: meta.GetNamespace(), Attempt: meta.GetAttempt(),
		Hostname:     c.GetHostname(),
		LogDirectory: c.GetLogDirectory(),
		DNS: podconfig.DNS{
			Servers:  c.GetDnsConfig().GetServers(),
			Searches: c.GetDnsConfig().GetSearches(),
			Options:  c.GetDnsConfig().GetOptions(),
		},
		Labels: c.GetLabels(), Annotations: c.GetAnnotations(),
		RuntimeHandler: handler,
		CgroupParent:   c.GetLinux().GetCgroupParent(),
		Sysctls:        c.GetLinux().GetSysctls(),
		Overhead:       optionalResources(c.GetLinux().GetOverhead()),
		Resources:      optionalResources(c.GetLinux().GetResources()),
	}
	var err error
	if out.Ports, err = ports(c.GetPortMappings()); err != nil {
		return podconfig.Pod{}, err
	}
	return out, sandboxSecurity(&out, c.GetLinux().GetSecurityContext())
}

func sandboxSecurity(out *podconfig.Pod, s *runtimeapi.LinuxSandboxSecurityContext) error {
	const field = "config.linux.security_context"
	var err error
	if out.Namespaces, err = namespaces(field+".namespace_options", s.GetNamespaceOptions()); err != nil {
		return err
	}
	if out.Seccomp, err = seccomp(field+".seccomp", s.GetSeccomp(), deprecatedSandboxSeccomp(s)); err != nil {
		return err
	}
	if out.AppArmor, err = apparmor(field+".apparmor", s.GetApparmor(), ""); err != nil {
		return err
	}
	if out.User, err = user(field, s.GetRunAsUser(), s.GetRunAsGroup(), ""); err != nil {
		return err
	}
	out.Privileged = s.GetPrivileged()
	out.ReadonlyRootfs = s.GetReadonlyRootfs()
	out.SupplementalGroups = s.GetSupplementalGroups()
	out.SELinux = selinux(s.GetSelinuxOptions())
	return nil
}

func ports(in []*runtimeapi.PortMapping) ([]podconfig.Port, error) {
	var out []podconfig.Port
	for _, p := range in {
		const field = "config.port_mappings"
		protocol, ok := runtimeapi.Protocol_name[int32(p.GetProtocol())]
		if !ok {
			return nil, invalid(field, "unknown protocol %d", p.GetProtocol())
		}
		for _, port := range []int32{p.GetContainerPort(), p.GetHostPort()} {
			if port < 0 || port > 65535 {
				return nil, invalid(field, "port %d is outside 0 to 65535", port)
			}
		}
		if ip := p.GetHostIp(); ip != "" {
			if _, err := netip.ParseAddr(ip); err != nil {
				return nil, invalid(field, "host_ip %q is not an IP address", ip)
			}
		}
		out = append(out, podconfig.Port{
			Protocol:      strings.ToLower(protocol),
			ContainerPort: p.GetContainerPort(),
			HostPort:      p.GetHostPort(),
			HostIP:        p.GetHostIp(),
		})
	}
	return out, nil
}

var modes = map[runtimeapi.NamespaceMode]podconfig.NamespaceMode{
	runtimeapi.NamespaceMode_POD:       podconfig.NamespacePod,
	runtimeapi.NamespaceMode_CONTAINER: podconfig.NamespaceContainer,
	runtimeapi.NamespaceMode_NODE:      podconfig.NamespaceNode,
	runtimeapi.NamespaceMode_TARGET:    podconfig.NamespaceTarget,
}

// namespaces converts namespace options; without any, each namespace is the pod's.
func namespaces(field string, o *runtimeapi.NamespaceOption) (podconfig.Namespaces, error) {
	for _, m := range []runtimeapi.NamespaceMode{o.GetNetwork(), o.GetPid(), o.GetIpc(), o.GetUsernsOptions().GetMode()} {
		if _, ok := modes[m]; !ok {
			return podconfig.Namespaces{}, invalid(field, "unknown namespace mode %d", m)
		}
	}
	for name, m := range map[string]runtimeapi.NamespaceMode{"network": o.GetNetwork(), "ipc": o.GetIpc()} {
		if m != runtimeapi.NamespaceMode_POD && m != runtimeapi.NamespaceMode_NODE {
			return podconfig.Namespaces{}, invalid(field, "%s namespace cannot be %s", name, m)
		}
	}
	if target := o.GetPid() == runtimeapi.NamespaceMode_TARGET; target != (o.GetTargetId() != "") {
		return podconfig.Namespaces{}, invalid(field, "pid namespace TARGET and target_id go together")
	}
	out := podconfig.Namespaces{
		Network:  modes[o.GetNetwork()],
		PID:      modes[o.GetPid()],
		IPC:      modes[o.GetIpc()],
		TargetID: o.GetTargetId(),
	}
	if u := o.GetUsernsOptions(); u != nil {
		out.User, out.Users = modes[u.GetMode()], idMaps(u.GetUids(), u.GetGids())
	}
	return out, nil
}

// namespaceOptions converts back, for a pod's status.
func namespaceOptions(n podconfig.Namespaces) *runtimeapi.NamespaceOption {
	back := func(mode podconfig.NamespaceMode) runtimeapi.NamespaceMode {
		for wire, m := range modes {
			if m == mode {
				return wire
			}
		}
		return runtimeapi.NamespaceMode_POD
	}
	out := &runtimeapi.NamespaceOption{
		Network: back(n.Network), Pid: back(n.PID), Ipc: back(n.IPC), TargetId: n.TargetID,
	}
	if n.User != "" {
		out.UsernsOptions = &runtimeapi.UserNamespace{
			Mode: back(n.User), Uids: idMapsBack(n.Users.UIDs), Gids: idMapsBack(n.Users.GIDs),
		}
	}
	return out
}

func podMetadata(c *podconfig.Pod) *runtimeapi.PodSandboxMetadata {
	return &runtimeapi.PodSandboxMetadata{Name: c.Name, Uid: c.UID, Namespace: c.Namespace, Attempt: c.Attempt}
}

func podState(s pod.State) runtimeapi.PodSandboxState {
	if s == pod.Ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func podItem(p *pod.Pod) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		Id:             p.ID,
		Metadata:       podMetadata(&p.Config),
		State:          podState(p.State),
		CreatedAt:      nanos(p.CreatedAt),
		Labels:         p.Config.Labels,
		Annotations:    p.Config.Annotations,
		RuntimeHandler: p.Config.RuntimeHandler,
	}
}

func podStatus(p pod.Pod) *runtimeapi.PodSandboxStatus {
	network := &runtimeapi.PodSandboxNetworkStatus{}
	for i, ip := range p.IPs {
		if i == 0 {
			network.Ip = ip.String()
			continue
		}
		network.AdditionalIps = append(network.AdditionalIps, &runtimeapi.PodIP{Ip: ip.String()})
	}
	return &runtimeapi.PodSandboxStatus{
		Id:        p.ID,
		Metadata:  podMetadata(&p.Config),
		State:     podState(p.State),
		CreatedAt: nanos(p.CreatedAt),
		Network:   network,
		Linux: &runtimeapi.LinuxPodSandboxStatus{
			Namespaces: &runtimeapi.Namespace{Options: namespaceOptions(p.Config.Namespaces)},
		},
		Labels:         p.Config.Labels,
		Annotations:    p.Config.Annotations,
		RuntimeHandler: p.Config.RuntimeHandler,
	}
}

func podFilter(f *runtimeapi.PodSandboxFilter) pod.PodFilter {
	out := pod.PodFilter{ID: f.GetId(), Labels: f.GetLabelSelector()}
	if f.GetState() == nil {
		return out
	}
	switch f.GetState().GetState() {
	case runtimeapi.PodSandboxState_SANDBOX_READY:
		out.State = pod.Ready
	case runtimeapi.PodSandboxState_SANDBOX_NOTREADY:
		out.State = pod.NotReady
	default:
		out.State = noPods
	}
	return out
}

// noPods is the state in a filter for one that CRI does not have: no pod is in it.
const noPods pod.State = "unknown"

// nanos is CRI's time: nanoseconds since 1970, 0 for not yet.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
