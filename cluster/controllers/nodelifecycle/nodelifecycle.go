// Package nodelifecycle watches over nodes: it notices the ones that have fallen silent, keeps
// their taints equal to their conditions, and moves pods off nodes that are not ready.
//
// A node's sign of life is its Lease (or a newer heartbeat in its status). When none has been seen
// for a grace period its conditions become Unknown ("NodeStatusUnknown") and its pods are marked
// not ready (health.go). What its conditions say is repeated as NoSchedule taints at once, and a
// node that is not ready gets a NoExecute taint (taints.go) at the pace that its zone allows: one
// node in 10 seconds, slower or not at all when many nodes of the zone are away, and none, with
// the taints that exist taken off, when not a single node is ready, since then it is the network
// or this controller that is ill, not the nodes (zones.go). Pods that do not tolerate a NoExecute
// taint, or not forever, are deleted by a second controller (eviction.go).
//
// Upstream looks at all nodes every 5 seconds. Here each node has one timer, set to when its
// silence would become too long; a node that is well is looked at once per grace period.
// Errors are repeated with the frame's back-off.
package nodelifecycle

import (
	"context"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	coreinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	upstream "k8s.io/kubernetes/pkg/controller"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/feed"
	"github.com/coracle-project/coracle/cluster/controllers/internal/nodepatch"
	"github.com/coracle-project/coracle/cluster/internal/shrink"
)

const (
	// workers wait for other changes of their nodes when many nodes join.
	workers = 32
	// DefaultGrace is how long a node may be silent.
	DefaultGrace = 50 * time.Second
	// startupGrace is how long a new node may be without a Ready condition.
	startupGrace = 60 * time.Second
)

type controller struct {
	grace    time.Duration // how long a node may be silent
	set      *client.Set
	write    *nodepatch.Writer // of labels and taints
	nodes    corelisters.NodeLister
	leases   coordinationlisters.LeaseNamespaceLister
	informer cache.SharedIndexInformer // of leases
	pods     corelisters.PodLister
	byNode   cache.Indexer
	frame    *frame.Controller
	recorder record.EventRecorder

	counted cache.DoneChecker // whether all nodes that there were are in shares

	mu     sync.Mutex
	health shrink.Map[string, *health]
	zones  map[string]*zone
	shares shrink.Map[string, share] // by node
	counts map[string]count          // by zone, the sums of shares
}

// New returns the controller; its keys are nodes ("NAME") and pods that were just bound to a node
// ("NAMESPACE/NAME"). It watches the Leases of nodes only, with reader: its own role does not read
// them. It writes labels and taints with write. A node may be silent for grace, 0 means
// DefaultGrace.
func New(set *client.Set, reader kubernetes.Interface, write *nodepatch.Writer, grace time.Duration) (*frame.Controller, error) {
	if grace == 0 {
		grace = DefaultGrace
	}
	pods, nodes := set.Informers.Core().V1().Pods(), set.Informers.Core().V1().Nodes()
	if err := upstream.AddPodNodeNameIndexer(pods.Informer()); err != nil {
		return nil, err
	}
	leases := coreinformers.NewLeaseInformer(reader, corev1.NamespaceNodeLease, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	recorder, flush := set.Recorder("node-controller", "")
	c := &controller{
		grace: grace, set: set, write: write, nodes: nodes.Lister(), informer: leases,
		leases: coordinationlisters.NewLeaseLister(leases.GetIndexer()).Leases(corev1.NamespaceNodeLease),
		pods:   pods.Lister(), byNode: pods.Informer().GetIndexer(), recorder: recorder,
		health: shrink.New[string, *health](), zones: map[string]*zone{},
		shares: shrink.New[string, share](), counts: map[string]count{},
	}
	c.frame = frame.New("nodelifecycle", workers, set.Logger(), c.sync)
	c.frame.Watch(nodes.Informer(), frame.Self)
	c.counted = feed.Changes(c.frame, nodes.Informer(), c.came)
	feed.Changes(c.frame, pods.Informer(), boundPod)
	feed.Own(c.frame, leases, func(obj any) []string {
		if lease, ok := obj.(*coordinationv1.Lease); ok {
			c.alive(lease.Name)
		}
		return nil
	})
	c.frame.Also(func(ctx context.Context) { <-ctx.Done(); flush() })
	return c.frame, nil
}

// boundPod returns the key of a pod that has a node now and had none, or another, before.
func boundPod(old, obj any) []string {
	before, _ := old.(*corev1.Pod)
	pod, _ := obj.(*corev1.Pod)
	if pod == nil || pod.Spec.NodeName == "" || before != nil && before.Spec.NodeName == pod.Spec.NodeName {
		return nil
	}
	return []string{pod.Namespace + "/" + pod.Name}
}

func (c *controller) sync(ctx context.Context, key string) error {
	if !feed.Synced(ctx, c.informer.HasSyncedChecker()) || !feed.Synced(ctx, c.counted) {
		return ctx.Err()
	}
	if namespace, name, isPod := strings.Cut(key, "/"); isPod {
		return c.syncPod(ctx, namespace, name)
	}
	node, err := c.nodes.Get(key)
	if apierrors.IsNotFound(err) {
		c.removed(key)
		return nil
	}
	if err != nil {
		return err
	}
	c.registered(node)
	node, err = c.checkHealth(ctx, node)
	if err != nil || node == nil {
		return err
	}
	if c.recount(node) {
		c.judgeZones()
	}
	if err := c.markPods(ctx, node); err != nil {
		return err
	}
	var ch change
	ch.matchLabels(node)
	ch.noSchedule(node)
	c.noExecute(&ch, node)
	return c.apply(ctx, node, ch)
}
