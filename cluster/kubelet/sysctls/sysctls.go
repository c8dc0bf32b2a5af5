// Package sysctls says which sysctls pods may set.
//
// Upstream calls a sysctl safe if it belongs to a namespace of the pod and has no effect on other
// pods; those are allowed. Of the others only those are that belong to such a namespace and that
// the administrator names (--allowed-unsafe-sysctls). Upstream's own package cannot be used: it
// links the scheduler. A test compares the lists.
package sysctls

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"
	policy "k8s.io/kubernetes/pkg/apis/policy/validation"
)

// Reason is that of pods that are not admitted.
const Reason = "SysctlForbidden"

// safe are the sysctls that need no permission. All belong to a namespace since Linux 4.15 at the
// latest, and coracled needs a newer kernel.
var safe = []string{
	"kernel.shm_rmid_forced",
	"net.ipv4.ip_local_port_range",
	"net.ipv4.ip_local_reserved_ports",
	"net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ping_group_range",
	"net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes",
	"net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_rmem",
	"net.ipv4.tcp_syncookies",
	"net.ipv4.tcp_wmem",
}

// Allowed are the sysctls that pods may set.
type Allowed struct {
	names    map[string]sysctl.Namespace
	prefixes map[string]sysctl.Namespace
}

// New allows the safe sysctls and those named: kernel.msgmax, or net.core.* for all that begin with
// "net.core.".
func New(unsafe []string) (*Allowed, error) {
	a := &Allowed{names: map[string]sysctl.Namespace{}, prefixes: map[string]sysctl.Namespace{}}
	for _, list := range [][]string{safe, unsafe} {
		for _, pattern := range list {
			if !policy.IsValidSysctlPattern(pattern) {
				return nil, fmt.Errorf("allowed sysctl %q is neither a name, such as kernel.msgmax, nor a prefix, such as net.core.*", pattern)
			}
			namespace, name, prefix := sysctl.GetNamespace(pattern)
			switch {
			case namespace == sysctl.UnknownNamespace:
				return nil,
					fmt.Errorf(
						"allowed sysctl %q belongs to the node and to no namespace of a pod; only those can be allowed: kernel.shm*, kernel.msg*, "+
							"kernel.sem, fs.mqueue.*, net.*", pattern,
					)
			case prefix:
				a.prefixes[name] = namespace
			default:
				a.names[name] = namespace
			}
		}
	}
	return a, nil
}

// Check returns why a pod may not set what it sets, in upstream's words.
func (a *Allowed) Check(pod *v1.Pod) error {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := sysctl.NormalizeName(s.Name)
		namespace, ok := a.namespace(name)
		switch {
		case !ok:
			return fmt.Errorf("forbidden sysctl: %q not allowlisted", name)
		case namespace == sysctl.IPCNamespace && pod.Spec.HostIPC, namespace == sysctl.NetNamespace && pod.Spec.HostNetwork:
			return fmt.Errorf("forbidden sysctl: %q not allowed with host %s enabled", name, namespace)
		}
	}
	return nil
}

// namespace returns the one that a sysctl belongs to, if it may be set.
func (a *Allowed) namespace(name string) (sysctl.Namespace, bool) {
	if namespace, ok := a.names[name]; ok {
		return namespace, true
	}
	for prefix, namespace := range a.prefixes {
		if strings.HasPrefix(name, prefix) {
			return namespace, true
		}
	}
	return sysctl.UnknownNamespace, false
}
