// Package freeports has each node say which of its ports are free, for Services of type
// LoadBalancer that are to have the addresses of nodes. Only the node itself can tell: the
// controller of such Services runs on another machine, and would give away the port of a process
// there, such as sshd.
//
// The question is a Service without an address. The answer is an annotation of the Node, which,
// apart from administrators, only the node itself can write (NodeRestriction).
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
	// settle is how long a Service has no address before the node answers: of a pool, it gets one at
	// once.
	settle = 300 * time.Millisecond
	// again is when a used port is looked at once more: no event tells that it is free.
	again = 30 * time.Second
	// mostPorts bounds the answers.
	mostPorts = 500
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
	since := map[types.UID]time.Time{} // when a Service without an address was first seen
	f = frame.New("free-ports", 1, set.Logger(), func(ctx context.Context, _ string) error {
		asked, wait := pending(loadbalancer.OfType(index, corev1.ServiceTypeLoadBalancer), since, time.Now())
		if wait > 0 {
			f.AddAfter(key, wait)
		}
		node, err := nodes.Get(o.Node)
		if apierrors.IsNotFound(err) {
			if len(asked) > 0 {
				f.AddAfter(key, again) // it registers soon
			}
			return nil
		}
		if err != nil {
			return err
		}
		answers := Answers{}
		for p := range asked {
			if answers[p] = o.uses(node, p); answers[p] {
				f.AddAfter(key, again)
			}
		}
		return o.publish(ctx, node, answers.String())
	})
	f.Watch(services.Informer(), func(obj any) []string {
		if service, ok := obj.(*corev1.Service); ok && service.Spec.Type == corev1.ServiceTypeLoadBalancer {
			return []string{key}
		}
		return nil
	})
	f.Watch(core.Nodes().Informer(), func(any) []string { return nil }) // so that it has synced
	return f
}

// pending returns the ports of Services that have had no address for a moment, and when there may
// be more.
func pending(services []*corev1.Service, since map[types.UID]time.Time, now time.Time) (asked map[Port]struct{}, wait time.Duration) {
	asked = map[Port]struct{}{}
	waiting := map[types.UID]bool{}
	for _, s := range services {
		if !loadbalancer.Concerns(s) || s.DeletionTimestamp != nil || len(s.Status.LoadBalancer.Ingress) > 0 {
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
		for _, port := range s.Spec.Ports {
			if len(asked) < mostPorts {
				asked[Port{port.Protocol, port.Port}] = struct{}{}
			}
		}
	}
	maps.DeleteFunc(since, func(uid types.UID, _ time.Time) bool { return !waiting[uid] })
	return asked, wait
}

// uses says whether something on the node uses a port of one of its addresses.
func (o *Options) uses(node *corev1.Node, p Port) bool {
	return slices.ContainsFunc(node.Status.Addresses, func(each corev1.NodeAddress) bool {
		a, err := netip.ParseAddr(each.Address)
		if err != nil {
			return false
		}
		busy, _ := o.Busy(netip.AddrPortFrom(a.Unmap(), uint16(p.Number)), p.Protocol)
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
