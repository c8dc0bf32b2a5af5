package kubelet

import (
	"fmt"
	"runtime"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	v1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	"k8s.io/kubernetes/pkg/security/apparmor"

	"github.com/coracle-project/coracle/cluster/kubelet/status"
	"github.com/coracle-project/coracle/cluster/kubelet/sysctls"
)

// admission lets pods onto the node that fit it next to those that are there. Schedulers check that
// already; a pod that was bound by hand, or by two schedulers, is refused here.
type admission struct {
	k *Kubelet
	// apparmor says whether the machine has it, sysctls which ones pods may set.
	apparmor apparmor.Validator
	sysctls  *sysctls.Allowed

	// given returns a pod as the node has agreed to run it, false if it is gone; wake has its worker
	// look at it again.
	given func(types.UID) (*v1.Pod, bool)
	wake  func(types.UID)
	evict func(types.UID, status.Eviction) bool

	mu        sync.Mutex
	pods      map[types.UID]*v1.Pod // admitted and not gone
	deferred  map[types.UID]*deferredResize
	preempted map[types.UID]bool // those that end for a critical pod, which counts instead
}

func newAdmission(k *Kubelet) *admission {
	return &admission{
		k: k, apparmor: apparmor.NewValidator(), sysctls: k.sysctls, pods: map[types.UID]*v1.Pod{},
		deferred: map[types.UID]*deferredResize{}, preempted: map[types.UID]bool{},
		given: func(uid types.UID) (*v1.Pod, bool) {
			v, ok := k.runner.View(uid)
			return v.Pod, ok
		},
		wake:  func(uid types.UID) { k.runner.Wake(uid) },
		evict: func(uid types.UID, e status.Eviction) bool { return k.runner.Evict(uid, e) },
	}
}

// apply runs a pod, the first time only if it fits. Pods that were started before, and those that
// are only here to end, need not fit.
func (a *admission) apply(p *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.pods[p.UID]; !known && !admitted(p) {
		reason, message, ok := a.confined(p)
		if ok {
			reason, message, ok = a.admitLocked(p)
		}
		if !ok {
			a.k.runner.Reject(p, reason, message)
			return
		}
	}
	if over(p) {
		a.goneLocked(p)
	} else {
		a.pods[p.UID] = p
		a.changedLocked(p)
	}
	a.k.runner.Apply(p)
}

// admitted says whether a pod needs no admission: it has been started before, or is only here to
// end.
func admitted(p *v1.Pod) bool {
	return p.DeletionTimestamp != nil || p.Status.StartTime != nil || over(p)
}

func (a *admission) remove(p *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.goneLocked(p)
	a.k.runner.Remove(p)
}

func (a *admission) goneLocked(p *v1.Pod) {
	delete(a.pods, p.UID)
	delete(a.deferred, p.UID)
	delete(a.preempted, p.UID)
	a.retryLocked()
}

// confined says whether what a pod asks for keeps it away from others and from the node's services;
// if not, why, in upstream's words where upstream has some. Pods that run are not asked again.
func (a *admission) confined(p *v1.Pod) (reason, message string, ok bool) {
	if err := a.sysctls.Check(p); err != nil {
		return sysctls.Reason, err.Error(), false
	}
	if err := a.apparmor.Validate(p); err != nil {
		return "AppArmor", fmt.Sprintf("Cannot enforce AppArmor: %v", err), false
	}
	return reserved(p, a.k.opts.Port, a.k.opts.ReservedPorts)
}

func (a *admission) admitLocked(p *v1.Pod) (reason, message string, ok bool) {
	if reason, message, ok = a.k.evictor.Admit(p); !ok {
		return reason, message, false
	}
	n, err := a.k.watched.node()
	if err != nil {
		n = a.k.reporter.Node()
	}
	others := a.othersLocked(p)
	reason, message, ok = admit(n, p, others)
	if !ok && kubetypes.IsCriticalPod(p) && len(shortages(n, p, others)) > 0 {
		return a.admitCriticalLocked(n, p, others)
	}
	return reason, message, ok
}

// othersLocked are the pods that take something of the node, with what they were allocated or
// granted: not those that have ended here though the API has not heard.
func (a *admission) othersLocked(p *v1.Pod) []*v1.Pod {
	others := make([]*v1.Pod, 0, len(a.pods))
	for uid := range a.pods {
		other, ok := a.given(uid)
		if uid == p.UID || !ok || over(other) || a.preempted[uid] {
			continue
		}
		if d := a.deferred[uid]; d != nil && d.granted {
			other = d.pod
		}
		others = append(others, other)
	}
	return others
}

// admit says whether a pod fits the node alongside the others; if not, why, in upstream's words.
func admit(n *v1.Node, p *v1.Pod, others []*v1.Pod) (reason, message string, ok bool) {
	predicate := func(name, text string) (string, string, bool) {
		return name, fmt.Sprintf("Predicate %s failed: %s", name, text), false
	}
	if os, asked := p.Spec.NodeSelector[v1.LabelOSStable]; asked && os != n.Labels[v1.LabelOSStable] {
		return "PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label", false
	}
	if p.Spec.OS != nil && string(p.Spec.OS.Name) != runtime.GOOS {
		return "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS", false
	}
	if strictGroups(p) && !supportsStrictGroups(n) {
		return "SupplementalGroupsPolicyNotSupported",
			fmt.Sprintf("SupplementalGroupsPolicy=%s is not supported in this node", v1.SupplementalGroupsPolicyStrict), false
	}
	if name, text, ok := fits(n, p, others); !ok {
		return "OutOf" + string(name), text, false
	}
	if matches, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n); err != nil || !matches {
		return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	if portsTaken(p, others) {
		return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	}
	if !kubetypes.IsStaticPod(p) {
		_, bad := corev1.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, p.Spec.Tolerations,
			func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }, false)
		if bad {
			return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
		}
	}
	return "", "", true
}

func strictGroups(p *v1.Pod) bool {
	sc := p.Spec.SecurityContext
	return sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict
}

func supportsStrictGroups(n *v1.Node) bool {
	f := n.Status.Features
	return f != nil && f.SupplementalGroupsPolicy != nil && *f.SupplementalGroupsPolicy
}

// fits says whether what the pod asks for is left, and if not of which resource there is too
// little.
func fits(n *v1.Node, p *v1.Pod, others []*v1.Pod) (v1.ResourceName, string, bool) {
	all := shortages(n, p, others)
	if len(all) == 0 {
		return "", "", true
	}
	s := all[0]
	return s.name, fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", s.name, s.requested, s.used,
		s.capacity), false
}

// shortage is a resource of which the node has too little: of CPU in thousandths.
type shortage struct {
	name                      v1.ResourceName
	requested, used, capacity int64
}

// shortages are the resources of which less is left than the pod asks for. An extended resource
// that the node does not have is someone else's affair.
func shortages(n *v1.Node, p *v1.Pod, others []*v1.Pod) (short []shortage) {
	allocatable := n.Status.Allocatable
	if most := allocatable.Pods().Value(); int64(len(others))+1 > most {
		short = append(short, shortage{v1.ResourcePods, 1, int64(len(others)), most})
	}
	options := resourcehelper.PodResourcesOptions{}
	used := v1.ResourceList{}
	for _, o := range others {
		for name, q := range resourcehelper.PodRequests(o, options) {
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	requests := resourcehelper.PodRequests(p, options)
	names := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
	for name := range requests {
		if v1helper.IsExtendedResourceName(name) || v1helper.IsHugePageResourceName(name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		q, asked := requests[name]
		have, there := allocatable[name]
		if !asked || q.IsZero() || !there && v1helper.IsExtendedResourceName(name) {
			continue
		}
		taken := used[name]
		sum := taken.DeepCopy()
		sum.Add(q)
		switch {
		case sum.Cmp(have) <= 0:
		case name == v1.ResourceCPU:
			short = append(short, shortage{name, q.MilliValue(), taken.MilliValue(), have.MilliValue()})
		default:
			short = append(short, shortage{name, q.Value(), taken.Value(), have.Value()})
		}
	}
	return short
}

// portsTaken says whether a host port that the pod wants is another's.
func portsTaken(p *v1.Pod, others []*v1.Pod) bool {
	wanted := hostPorts(p)
	for _, o := range others {
		for _, taken := range hostPorts(o) {
			for _, w := range wanted {
				if w.HostPort == taken.HostPort && w.Protocol == taken.Protocol &&
					(w.HostIP == taken.HostIP || w.HostIP == anyIP || taken.HostIP == anyIP) {
					return true
				}
			}
		}
	}
	return false
}

// reserved refuses a pod that wants a TCP port of the node's own services, on whatever address. own
// is the kubelet's.
func reserved(p *v1.Pod, own int, others map[int]string) (reason, message string, ok bool) {
	for _, port := range hostPorts(p) {
		if port.Protocol != v1.ProtocolTCP {
			continue
		}
		owner, taken := others[int(port.HostPort)]
		if int(port.HostPort) == own {
			owner, taken = "the kubelet", true
		}
		if taken {
			return "HostPortReserved", fmt.Sprintf("host port %d/TCP belongs to %s on this node; choose another hostPort", port.HostPort, owner),
				false
		}
	}
	return "", "", true
}

const anyIP = "0.0.0.0"

// hostPorts are the host ports of a pod's containers and sidecars.
func hostPorts(p *v1.Pod) []v1.ContainerPort {
	var ports []v1.ContainerPort
	add := func(c *v1.Container) {
		for _, port := range c.Ports {
			if port.HostPort <= 0 {
				continue
			}
			if port.HostIP == "" {
				port.HostIP = anyIP
			}
			if port.Protocol == "" {
				port.Protocol = v1.ProtocolTCP
			}
			ports = append(ports, port)
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return ports
}
