// Package endpointslice keeps the EndpointSlices of Services with a selector: which pods there are
// behind a Service, on which addresses and ports, and whether they are ready.
//
// How endpoints are packed into slices, and the hints for topology and traffic distribution, are
// upstream's reconciler itself (k8s.io/endpointslice). This package decides when it runs: when a
// Service changes, when a pod changes in a way that its Services' slices show, when someone else
// touches a slice, and when nodes shift so much between zones that a Service's hints overload one.
//
// A slice that the reconciler has written and the cache does not show yet puts the next run off by
// a second. An error becomes an event on the Service, and the work is repeated with the frame's
// back-off.
package endpointslice

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	reconciler "k8s.io/endpointslice"
	"k8s.io/endpointslice/topologycache"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"
	nodeutil "k8s.io/kubernetes/pkg/util/node"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/feed"
)

const (
	workers = 5
	// name marks the slices that are this controller's, in the label managed-by.
	name = "endpointslice-controller.k8s.io"
	// maxEndpoints is how many endpoints a slice may have.
	maxEndpoints = 100
	// settle is the pause after a slice changed, since one sync changes several.
	settle = time.Second
	// topology is the key of what is known of zones: no Service's, which have a namespace.
	topology = "zones of nodes"
)

type controller struct {
	services corelisters.ServiceLister
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
	slices   discoverylisters.EndpointSliceLister

	frame      *frame.Controller
	recorder   record.EventRecorder
	reconciler *reconciler.Reconciler
	written    *endpointsliceutil.EndpointSliceTracker
	triggers   *endpointsliceutil.TriggerTimeTracker
	topology   *topologycache.TopologyCache
	// moved says that nodes have changed since the topology was told of them. learning is held
	// while it is told.
	moved    atomic.Bool
	learning sync.Mutex
}

// New returns the controller; its keys are Services.
func New(set *client.Set) *frame.Controller {
	core := set.Informers.Core().V1()
	services, pods, nodes := core.Services(), core.Pods(), core.Nodes()
	slices := set.Informers.Discovery().V1().EndpointSlices()
	recorder, flush := set.Recorder("endpoint-slice-controller", "")
	c := &controller{
		services: services.Lister(), pods: pods.Lister(), nodes: nodes.Lister(), slices: slices.Lister(),
		recorder: recorder,
		written:  endpointsliceutil.NewEndpointSliceTracker(),
		triggers: endpointsliceutil.NewTriggerTimeTracker(),
		topology: topologycache.NewTopologyCache(),
	}
	c.moved.Store(true) // of those that there are, it was told nothing
	c.reconciler = reconciler.NewReconciler(set.Kube, c.nodes, maxEndpoints, c.written, c.topology, recorder, name,
		reconciler.WithPreferSameTrafficDistributionEnabled(true))
	c.frame = frame.New("endpointslice", workers, set.Logger(), c.sync)
	c.frame.Watch(services.Informer(), frame.Self)
	feed.Changes(c.frame, pods.Informer(), c.servicesOf)
	feed.Changes(c.frame, slices.Informer(), c.sliceChanged)
	feed.Changes(c.frame, nodes.Informer(), c.nodeChanged)
	c.frame.Also(func(ctx context.Context) { <-ctx.Done(); flush() })
	return c.frame
}

// servicesOf returns the Services whose slices a pod's change shows in.
func (c *controller) servicesOf(old, pod any) []string {
	change := endpointsliceutil.GetPodUpdateProjectionKey(old, pod)
	if change == nil {
		return nil
	}
	keys, err := endpointsliceutil.GetServicesToUpdate(c.services, change)
	if err != nil {
		return nil
	}
	return keys.UnsortedList()
}

// sliceChanged has a Service looked at, a little later, if someone else touched its slices.
func (c *controller) sliceChanged(old, obj any) []string {
	before, _ := old.(*discoveryv1.EndpointSlice)
	slice, _ := obj.(*discoveryv1.EndpointSlice)
	switch {
	case slice == nil:
		if c.reconciler.ManagedByController(before) && c.written.Has(before) && !c.written.HandleDeletion(before) {
			c.later(before)
		}
	case before != nil && before.Labels[discoveryv1.LabelServiceName] != slice.Labels[discoveryv1.LabelServiceName]:
		c.later(before)
		c.later(slice)
	case before != nil && c.reconciler.ManagedByChanged(before, slice),
		c.reconciler.ManagedByController(slice) && c.written.ShouldSync(slice):
		c.later(slice)
	}
	return nil
}

func (c *controller) later(slice *discoveryv1.EndpointSlice) {
	if key, err := reconciler.ServiceControllerKey(slice); err == nil {
		c.frame.AddAfter(key, settle)
	}
}

// nodeChanged returns topology if a node is ready or in a zone that was not before. A little later,
// as nodes often come in numbers: what a zone has is a question to all nodes.
func (c *controller) nodeChanged(old, obj any) []string {
	before, _ := old.(*corev1.Node)
	node, _ := obj.(*corev1.Node)
	if before != nil && node != nil && nodeutil.IsNodeReady(before) == nodeutil.IsNodeReady(node) &&
		before.Labels[corev1.LabelTopologyZone] == node.Labels[corev1.LabelTopologyZone] {
		return nil
	}
	c.moved.Store(true)
	c.frame.AddAfter(topology, settle)
	return nil
}

// learnZones tells the topology which nodes are ready where, if that has changed.
func (c *controller) learnZones() error {
	c.learning.Lock()
	defer c.learning.Unlock()
	if !c.moved.Swap(false) {
		return nil
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		c.moved.Store(true)
		return err
	}
	c.topology.SetNodes(klog.Background(), nodes)
	return nil
}

func (c *controller) sync(_ context.Context, key string) error {
	if err := c.learnZones(); err != nil {
		return err
	}
	if key == topology {
		for _, overloaded := range c.topology.GetOverloadedServices() {
			c.frame.Add(overloaded)
		}
		return nil
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	service, err := c.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) { // its slices have an owner reference: they are collected
		c.triggers.DeleteService(namespace, name)
		c.reconciler.DeleteService(namespace, name)
		c.written.DeleteService(namespace, name)
		return nil
	}
	if err != nil {
		return err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || service.Spec.Selector == nil {
		return nil // its endpoints are the users' own affair
	}
	pods, err := c.pods.Pods(namespace).List(labels.Set(service.Spec.Selector).AsSelectorPreValidated())
	if err != nil {
		c.recorder.Eventf(service, corev1.EventTypeWarning, "FailedToListPods",
			"Error listing Pods for Service %s/%s: %v", namespace, name, err)
		return err
	}
	existing, err := c.slices.EndpointSlices(namespace).List(labels.Set{
		discoveryv1.LabelServiceName: service.Name,
		discoveryv1.LabelManagedBy:   c.reconciler.GetControllerName(),
	}.AsSelectorPreValidated())
	if err != nil {
		c.recorder.Eventf(service, corev1.EventTypeWarning, "FailedToListEndpointSlices",
			"Error listing Endpoint Slices for Service %s/%s: %v", namespace, name, err)
		return err
	}
	existing = slices.DeleteFunc(existing, func(slice *discoveryv1.EndpointSlice) bool { return slice.DeletionTimestamp != nil })
	if c.written.StaleSlices(service, existing) {
		c.frame.AddAfter(key, settle)
		return nil
	}
	triggered := c.triggers.ComputeEndpointLastChangeTriggerTime(namespace, service, pods)
	if err := c.reconciler.Reconcile(klog.Background(), service, pods, existing, triggered); err != nil {
		c.recorder.Eventf(service, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s/%s: %v", namespace, name, err)
		return err
	}
	return nil
}
