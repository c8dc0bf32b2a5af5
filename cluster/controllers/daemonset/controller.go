// Package daemonset keeps one pod of each DaemonSet on every node that it fits.
//
// A sync first settles the DaemonSet's history (history.go): a ControllerRevision for each pod
// template it had, the present one's hash in a label of the pods made from it. Then, node by node,
// it creates missing pods and deletes those that failed, ended or are one too many (manage.go), and
// replaces pods of earlier revisions as far as maxUnavailable or maxSurge lets it (rolling.go).
// Which nodes fit is in placement.go. Pods are bound by the scheduler: a pod names its node by node
// affinity, which also says whose a pod is that is not bound yet.
//
// A pod that failed is replaced after a back-off per node (1 s doubling to 15 min), so that one
// that the kubelet keeps rejecting does not spin.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	upstream "k8s.io/kubernetes/pkg/controller"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/adoption"
	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
	"github.com/coracle-project/coracle/cluster/controllers/internal/podcontrol"
)

var kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

type controller struct {
	queue         *frame.Controller
	kube          kubernetes.Interface
	events        record.EventRecorder
	daemons       appslisters.DaemonSetLister
	nodes         corelisters.NodeLister
	cache         cache.Indexer // of DaemonSets
	revisionCache cache.Indexer
	podCache      cache.Indexer
	pods          *podcontrol.Control
	writes        *freshness.Writes
	backoff       *flowcontrol.Backoff // of failed pods, by DaemonSet, generation and node
}

// New returns the controller of DaemonSets.
func New(set *client.Set) *frame.Controller {
	apps, core := set.Informers.Apps().V1(), set.Informers.Core().V1()
	daemons, revisions := apps.DaemonSets(), apps.ControllerRevisions().Informer()
	pods, nodes := core.Pods().Informer(), core.Nodes()
	adoption.MustIndex(pods)
	adoption.MustIndex(revisions)
	if err := upstream.AddPodNodeNameIndexer(pods); err != nil { // the informer was stopped: a mistake in wiring
		panic(err)
	}
	events, stop := set.Recorder("daemonset-controller", "")

	c := &controller{
		kube: set.Kube, events: events,
		daemons: daemons.Lister(), nodes: nodes.Lister(),
		cache: daemons.Informer().GetIndexer(), revisionCache: revisions.GetIndexer(), podCache: pods.GetIndexer(),
		writes:  freshness.New(set.Logger()),
		backoff: flowcontrol.NewBackOff(time.Second, 15*time.Minute),
	}
	c.pods = &podcontrol.Control{Kind: kind, Kube: set.Kube, Events: events, Writes: c.writes, Cache: c.podCache}
	guarded := c.writes.Guard(c.syncAndLook, func(key string, d time.Duration) { c.queue.AddAfter(key, d) })
	c.queue = frame.New("daemonset", 2, set.Logger(), guarded)
	c.queue.Watch(daemons.Informer(), frame.Self)
	c.queue.Watch(pods, adoption.Concerns(kind.Kind, c.daemons.GetPodDaemonSets))
	concerned := adoption.Concerns(kind.Kind, c.daemons.GetHistoryDaemonSets)
	c.queue.WatchAdded(revisions, c.addedRevision(concerned), concerned)
	c.queue.Watch(nodes.Informer(), c.concernsNode)
	c.queue.Also(func(ctx context.Context) { <-ctx.Done(); stop() })
	return c.queue
}

// syncAndLook is sync. A revision that it makes may be in the cache before it is noted as written:
// addedRevision has ignored it then.
func (c *controller) syncAndLook(ctx context.Context, key string) error {
	err := c.sync(ctx, key)
	if c.writes.Acted(key) && c.writes.Shown(key) {
		c.queue.Add(key)
	}
	return err
}

// addedRevision returns the keys for a revision that comes. One that already belongs to a DaemonSet
// is no reason to look at it, as in upstream: the revision may be of the present template, made by
// others, and they want to see it before the next sync merges the two. But a sync may wait for its
// own.
func (c *controller) addedRevision(concerned frame.Keys) frame.Keys {
	return func(obj any) []string {
		keys := concerned(obj)
		if revision, ok := obj.(*appsv1.ControllerRevision); ok && metav1.GetControllerOfNoCopy(revision) != nil {
			keys = slices.DeleteFunc(keys, func(key string) bool { return !c.writes.Acted(key) })
		}
		return keys
	}
}

// daemon is what one sync works on.
type daemon struct {
	*controller
	key   string
	ds    *appsv1.DaemonSet
	nodes []*corev1.Node
	fits  map[string]fit // by node
	pods  map[string][]*corev1.Pod
	all   []*corev1.Pod // pods, and finished ones that are being deleted
	// now is the time that all judgements of availability in this sync use.
	now time.Time
	// hash is of the present template, and the value of the label of pods made from it.
	hash string
}

func (c *controller) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	ds, err := c.daemons.DaemonSets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.writes.Forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	if reflect.DeepEqual(ds.Spec.Selector, &metav1.LabelSelector{}) {
		c.events.Event(ds, corev1.EventTypeWarning, "SelectingAll", "This daemon set is selecting all pods. A non-empty selector is required.")
		return nil
	}
	if ds.DeletionTimestamp != nil {
		return nil // its history may be gone or orphaned already: there is nothing true to say
	}
	d := &daemon{controller: c, key: key, ds: ds, now: time.Now()}
	if d.nodes, err = c.nodes.List(labels.Everything()); err != nil {
		return err
	}
	d.place()
	if err := d.claimPods(ctx); err != nil {
		return err
	}
	old, err := d.history(ctx)
	if err != nil {
		return fmt.Errorf("history of DaemonSet %s: %w", key, err)
	}
	err = d.update(ctx, old)
	if err == nil && c.writes.Acted(key) {
		return nil // what was written brings the next sync
	}
	return errors.Join(err, d.writeStatus(ctx))
}

// update creates, deletes and replaces pods, and drops history that is too long.
func (d *daemon) update(ctx context.Context, old []*appsv1.ControllerRevision) error {
	if err := d.manage(ctx); err != nil {
		return err
	}
	if !d.writes.Acted(d.key) && d.ds.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		if err := d.roll(ctx); err != nil {
			return err
		}
	}
	return d.pruneHistory(ctx, old)
}

func (d *daemon) selector() (labels.Selector, error) {
	return metav1.LabelSelectorAsSelector(d.ds.Spec.Selector)
}

// read gets the DaemonSet from the API, as adoption wants it.
func (d *daemon) read(ctx context.Context) (metav1.Object, error) {
	return d.kube.AppsV1().DaemonSets(d.ds.Namespace).Get(ctx, d.ds.Name, metav1.GetOptions{})
}
