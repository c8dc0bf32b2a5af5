// Package freeports has each node say which of its ports are free, for Services of type
// LoadBalancer that are to have the addresses of nodes. Only the node itself can tell: the
// controller of such Services runs on another machine, and would give away the port of a process
// there, such as sshd.
//
// The question is a Service whose status lacks an address of the node. The answer is an annotation
// of the Node, which, apart from administrators, only the node itself can write (NodeRestriction).
package freeports

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/loadbalancer"
)

// Annotation is the annotation of a Node with its answers: "80/TCP=free,22/TCP=used".
const Annotation = "coracle.dev/ports"

// Port is one of a node.
type Port struct {
	Protocol corev1.Protocol
	Number   int32
}

func (p Port) String() string { return strconv.Itoa(int(p.Number)) + "/" + string(p.Protocol) }

const (
	free = "free"
	used = "used"
)

// Answers say of ports whether they are used.
type Answers map[Port]bool

func (a Answers) String() string {
	var all []string
	for _, p := range slices.SortedFunc(maps.Keys(a), func(p, q Port) int {
		return cmp.Or(cmp.Compare(p.Number, q.Number), cmp.Compare(p.Protocol, q.Protocol))
	}) {
		all = append(all, p.String()+"="+map[bool]string{false: free, true: used}[a[p]])
	}
	return strings.Join(all, ",")
}

// Of returns a node's answers. What is no answer is left out.
func Of(node *corev1.Node) Answers {
	answers := Answers{}
	text := node.Annotations[Annotation]
	if text == "" {
		return answers
	}
	for each := range strings.SplitSeq(text, ",") {
		port, state, _ := strings.Cut(each, "=")
		number, protocol, _ := strings.Cut(port, "/")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || state != free && state != used {
			continue
		}
		answers[Port{corev1.Protocol(protocol), int32(n)}] = state == used
	}
	return answers
}

const (
	// settle is how long a Service lacks a port of the node before the node answers: a Service that
	// gets an address of a pool has it by then.
	settle = 300 * time.Millisecond
	// again is when the ports are looked at once more: no event tells that one is used, or free.
	again = 30 * time.Second
	// mostPorts bounds the answers. Those for the oldest Services come first.
	mostPorts = 4096
	// key is the only one: all Services are looked at together.
	key = "ports"
)

// Options say which node answers.
type Options struct {
	Node string
	// Client acts as the node.
	Client kubernetes.Interface
	// Busy says whether something uses a port of an address, and whether the address is this
	// machine's; nil is loadbalancer.PortBusy.
	Busy func(netip.AddrPort, corev1.Protocol) (busy, local bool)
}

// New returns what answers for a node. It asks for informers and makes no call.
func New(set *client.Set, o Options) *frame.Controller {
	if o.Busy == nil {
		o.Busy = loadbalancer.PortBusy
	}
	core := set.Informers.Core().V1()
	services, nodes := core.Services(), core.Nodes().Lister()
	loadbalancer.Index(services.Informer())
	index := services.Informer().GetIndexer()
	var f *frame.Controller
	since := map[types.UID]time.Time{} // when a Service was first seen to lack a port of the node
	f = frame.New("free-ports", 1, set.Logger(), func(ctx context.Context, _ string) error {
		node, err := nodes.Get(o.Node)
		if apierrors.IsNotFound(err) {
			return nil // its registration is an event
		}
		if err != nil {
			return err
		}
		asked, wait := missing(loadbalancer.OfType(index, corev1.ServiceTypeLoadBalancer), loadbalancer.NodeAddresses(node), since, time.Now())
		if wait > 0 {
			f.AddAfter(key, wait)
		}
		if len(asked) > 0 {
			f.AddAfter(key, again)
		}
		answers := Answers{}
		for p := range asked {
			answers[p] = o.uses(node, p)
		}
		return o.publish(ctx, node, answers.String())
	})
	f.Watch(services.Informer(), func(obj any) []string {
		if service, ok := obj.(*corev1.Service); ok && service.Spec.Type == corev1.ServiceTypeLoadBalancer {
			return []string{key}
		}
		return nil
	})
	f.Watch(core.Nodes().Informer(), func(obj any) []string {
		if node, ok := obj.(*corev1.Node); ok && node.Name == o.Node {
			return []string{key}
		}
		return nil
	})
	return f
}

// missing returns the ports that Services have lacked at a node's addresses for a moment, and when
// there may be more.
func missing(services []*corev1.Service, addresses []netip.Addr, since map[types.UID]time.Time, now time.Time) (
	asked map[Port]struct{}, wait time.Duration,
) {
	asked = map[Port]struct{}{}
	waiting := map[types.UID]bool{}
	slices.SortFunc(services, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	for _, s := range services {
		ports := lacks(s, addresses)
		if len(ports) == 0 {
			continue
		}
		waiting[s.UID] = true
		if since[s.UID].IsZero() {
			since[s.UID] = now
		}
		if left := since[s.UID].Add(settle).Sub(now); left > 0 {
			wait = max(wait, left)
			continue
		}
		for _, p := range ports {
			if len(asked) < mostPorts {
				asked[p] = struct{}{}
			}
		}
	}
	maps.DeleteFunc(since, func(uid types.UID, _ time.Time) bool { return !waiting[uid] })
	return asked, wait
}

// lacks returns the ports of a Service that it does not have at one of the node's addresses, and
// may get there.
func lacks(s *corev1.Service, addresses []netip.Addr) (ports []Port) {
	if !loadbalancer.Concerns(s) || s.DeletionTimestamp != nil {
		return nil
	}
	wanted, err := netip.ParseAddr(s.Spec.LoadBalancerIP)
	for _, port := range s.Spec.Ports {
		p := Port{port.Protocol, port.Port}
		if slices.ContainsFunc(addresses, func(a netip.Addr) bool {
			family := corev1.IPv4Protocol
			if a.Is6() {
				family = corev1.IPv6Protocol
			}
			return (err != nil || wanted == a) && slices.Contains(s.Spec.IPFamilies, family) && !has(s, a, p)
		}) {
			ports = append(ports, p)
		}
	}
	return ports
}

// has says whether a Service has a port of an address.
func has(s *corev1.Service, a netip.Addr, p Port) bool {
	return slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(ingress corev1.LoadBalancerIngress) bool {
		return ingress.IP == a.String() && (len(ingress.Ports) == 0 ||
			slices.ContainsFunc(ingress.Ports, func(port corev1.PortStatus) bool { return Port{port.Protocol, port.Port} == p }))
	})
}

// uses says whether something on the node uses a port of one of its addresses.
func (o *Options) uses(node *corev1.Node, p Port) bool {
	return slices.ContainsFunc(loadbalancer.NodeAddresses(node), func(a netip.Addr) bool {
		busy, _ := o.Busy(netip.AddrPortFrom(a, uint16(p.Number)), p.Protocol)
		return busy
	})
}

// publish writes the answers, none of which outlives its question: the port may be used later.
func (o *Options) publish(ctx context.Context, node *corev1.Node, answers string) error {
	if node.Annotations[Annotation] == answers {
		return nil
	}
	value := &answers
	if answers == "" {
		value = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{Annotation: value}}})
	if err != nil {
		return err
	}
	_, err = o.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("say which ports of node %s are free: %w", node.Name, err)
	}
	return nil
}
