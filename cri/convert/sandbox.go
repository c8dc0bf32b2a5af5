package convert

import (
	"net/netip"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/field"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// Pod converts and checks a pod's config. Everything a name may contain, and
// what this node supports, is checked by pod/.
func Pod(c *runtimeapi.PodSandboxConfig, handler string) (podconfig.Pod, error) {
	if c == nil {
		return podconfig.Pod{}, field.Invalid("config", "is required")
	}
	if c.GetWindows() != nil {
		return podconfig.Pod{}, field.Invalid("config.windows", "this node runs Linux")
	}
	meta := c.GetMetadata()
	if err := field.Required("config.metadata.name", meta.GetName()); err != nil {
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
		Overhead:       OptionalResources(c.GetLinux().GetOverhead()),
		Resources:      OptionalResources(c.GetLinux().GetResources()),
	}
	var err error
	if out.Ports, err = ports(c.GetPortMappings()); err != nil {
		return podconfig.Pod{}, err
	}
	return out, sandboxSecurity(&out, c.GetLinux().GetSecurityContext())
}

func sandboxSecurity(out *podconfig.Pod, s *runtimeapi.LinuxSandboxSecurityContext) error {
	const where = "config.linux.security_context"
	var err error
	if out.Namespaces, err = namespaces(where+".namespace_options", s.GetNamespaceOptions()); err != nil {
		return err
	}
	if out.Seccomp, err = seccomp(where+".seccomp", s.GetSeccomp(), deprecatedSandboxSeccomp(s)); err != nil {
		return err
	}
	if out.AppArmor, err = apparmor(where+".apparmor", s.GetApparmor(), ""); err != nil {
		return err
	}
	if out.User, err = user(where, s.GetRunAsUser(), s.GetRunAsGroup(), ""); err != nil {
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
		const where = "config.port_mappings"
		protocol, ok := runtimeapi.Protocol_name[int32(p.GetProtocol())]
		if !ok {
			return nil, field.Invalid(where, "unknown protocol %d", p.GetProtocol())
		}
		for _, port := range []int32{p.GetContainerPort(), p.GetHostPort()} {
			if port < 0 || port > 65535 {
				return nil, field.Invalid(where, "port %d is outside 0 to 65535", port)
			}
		}
		if ip := p.GetHostIp(); ip != "" {
			if _, err := netip.ParseAddr(ip); err != nil {
				return nil, field.Invalid(where, "host_ip %q is not an IP address", ip)
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
func namespaces(where string, o *runtimeapi.NamespaceOption) (podconfig.Namespaces, error) {
	for _, m := range []runtimeapi.NamespaceMode{o.GetNetwork(), o.GetPid(), o.GetIpc(), o.GetUsernsOptions().GetMode()} {
		if _, ok := modes[m]; !ok {
			return podconfig.Namespaces{}, field.Invalid(where, "unknown namespace mode %d", m)
		}
	}
	for name, m := range map[string]runtimeapi.NamespaceMode{"network": o.GetNetwork(), "ipc": o.GetIpc()} {
		if m != runtimeapi.NamespaceMode_POD && m != runtimeapi.NamespaceMode_NODE {
			return podconfig.Namespaces{}, field.Invalid(where, "%s namespace cannot be %s", name, m)
		}
	}
	if target := o.GetPid() == runtimeapi.NamespaceMode_TARGET; target != (o.GetTargetId() != "") {
		return podconfig.Namespaces{}, field.Invalid(where, "pid namespace TARGET and target_id go together")
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

// PodMetadata are the names of a pod.
func PodMetadata(c *podconfig.Pod) *runtimeapi.PodSandboxMetadata {
	return &runtimeapi.PodSandboxMetadata{Name: c.Name, Uid: c.UID, Namespace: c.Namespace, Attempt: c.Attempt}
}

func podState(s pod.State) runtimeapi.PodSandboxState {
	if s == pod.Ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// PodItem is a pod in a list.
func PodItem(p *pod.Pod) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		Id:             p.ID,
		Metadata:       PodMetadata(&p.Config),
		State:          podState(p.State),
		CreatedAt:      Nanos(p.CreatedAt),
		Labels:         p.Config.Labels,
		Annotations:    p.Config.Annotations,
		RuntimeHandler: p.Config.RuntimeHandler,
	}
}

// PodStatus is a pod's status.
func PodStatus(p pod.Pod) *runtimeapi.PodSandboxStatus {
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
		Metadata:  PodMetadata(&p.Config),
		State:     podState(p.State),
		CreatedAt: Nanos(p.CreatedAt),
		Network:   network,
		Linux: &runtimeapi.LinuxPodSandboxStatus{
			Namespaces: &runtimeapi.Namespace{Options: namespaceOptions(p.Config.Namespaces)},
		},
		Labels:         p.Config.Labels,
		Annotations:    p.Config.Annotations,
		RuntimeHandler: p.Config.RuntimeHandler,
	}
}

// PodFilter converts the filter of a list; nil chooses all.
func PodFilter(f *runtimeapi.PodSandboxFilter) pod.PodFilter {
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
		out.State = NoPods
	}
	return out
}

// NoPods is the state in a filter for one that CRI does not have: no pod is in it.
const NoPods pod.State = "unknown"

// Nanos is CRI's time: nanoseconds since 1970, 0 for not yet.
func Nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
