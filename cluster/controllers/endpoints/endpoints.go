// Package endpoints keeps the Endpoints object of every Service with a selector: the older form of
// what EndpointSlices say, which clients still read.
//
// A Service's Endpoints are computed again (subsets.go) when the Service changes, when a pod
// changes in a way that they show, and when someone deletes them; they are deleted with the
// Service. Endpoints that belong to no Service are left alone while the controller runs, since
// users make them by hand before their Service; at its start those whose Service went meanwhile are
// removed. An error becomes an event, and the work is repeated with the frame's back-off.
package endpoints

//lint:file-ignore SA1019 the old API is what this package serves

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	endpointsliceutil "k8s.io/endpointslice/util"
	repack "k8s.io/kubernetes/pkg/api/v1/endpoints"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/feed"
)

const (
	workers = 5
	// managedBy marks Endpoints that a controller makes, so that they are not mirrored to slices.
	managedBy = "endpoints.kubernetes.io/managed-by"
	name      = "endpoint-controller"
	// staleRetry is the wait for the cache to show the last write, if no event comes first.
	staleRetry = time.Second
)

type controller struct {
	set       *client.Set
	services  corelisters.ServiceLister
	pods      corelisters.PodLister
	endpoints corelisters.EndpointsLister
	frame     *frame.Controller
	recorder  record.EventRecorder
	triggers  *endpointsliceutil.TriggerTimeTracker

	mu sync.Mutex
	// replaced holds, by Service, the version of the Endpoints that the last write replaced. A
	// cache that still shows it would have that write repeated.
	replaced map[string]string
}

// New returns the controller; its keys are Services.
func New(set *client.Set) *frame.Controller {
	core := set.Informers.Core().V1()
	services, pods, endpoints := core.Services(), core.Pods(), core.Endpoints()
	recorder, flush := set.Recorder(name, "")
	c := &controller{
		set: set, services: services.Lister(), pods: pods.Lister(), endpoints: endpoints.Lister(),
		recorder: recorder, triggers: endpointsliceutil.NewTriggerTimeTracker(), replaced: map[string]string{},
	}
	c.frame = frame.New("endpoints", workers, set.Logger(), c.sync)
	c.frame.Watch(services.Informer(), frame.Self)
	feed.Changes(c.frame, pods.Informer(), c.servicesOf)
	feed.Changes(c.frame, endpoints.Informer(), func(old, obj any) []string {
		if obj != nil {
			return nil
		}
		return frame.Self(old)
	})
	c.frame.Also(func(ctx context.Context) {
		defer flush()
		c.addLeftovers()
		<-ctx.Done()
	})
	return c.frame
}

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

// addLeftovers has all Endpoints looked at, also those whose Service is gone.
func (c *controller) addLeftovers() {
	all, _ := c.endpoints.List(labels.Everything())
	for _, e := range all {
		if _, lock := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]; !lock {
			c.frame.Add(e.Namespace + "/" + e.Name)
		}
	}
}

func (c *controller) sync(ctx context.Context, key string) error {
	namespace, serviceName, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	service, err := c.services.Services(namespace).Get(serviceName)
	if apierrors.IsNotFound(err) {
		err = c.set.Kube.CoreV1().Endpoints(namespace).Delete(ctx, serviceName, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		c.triggers.DeleteService(namespace, serviceName)
		c.setReplaced(key, "")
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
		return err
	}
	current, err := c.endpoints.Endpoints(namespace).Get(serviceName)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	missing := err != nil
	if !missing && c.wasReplaced(key, current.ResourceVersion) {
		c.frame.AddAfter(key, staleRetry)
		return nil
	}
	triggered := c.triggers.ComputeEndpointLastChangeTriggerTime(namespace, service, pods)
	subsets := subsetsOf(service, pods)
	if missing {
		current = &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName}}
	} else if current.DeletionTimestamp == nil && upToDate(current, service, subsets) {
		return nil
	}
	return c.write(ctx, key, service, current, desired(current, service, subsets, triggered), missing)
}

// upToDate reports whether Endpoints say what they should.
func upToDate(e *corev1.Endpoints, service *corev1.Service, subsets []corev1.EndpointSubset) bool {
	same := equalities.DeepEqual(e.Subsets, subsets) || equalities.DeepEqual(repack.RepackSubsets(e.Subsets), subsets)
	if !same || e.Labels[managedBy] != name {
		return false
	}
	own := maps.Clone(e.Labels)
	delete(own, managedBy)
	delete(own, corev1.IsHeadlessService)
	if !maps.Equal(own, service.Labels) {
		return false
	}
	_, truncated := e.Annotations[corev1.EndpointsOverCapacity]
	return !truncated && count(e.Subsets) <= maxAddresses
}

// desired returns current with what it should say.
func desired(current *corev1.Endpoints, service *corev1.Service, subsets []corev1.EndpointSubset, triggered time.Time) *corev1.Endpoints {
	e := current.DeepCopy()
	e.Subsets = subsets
	if e.Annotations == nil {
		e.Annotations = map[string]string{}
	}
	setOrClear := func(m map[string]string, key, value string, set bool) {
		delete(m, key)
		if set {
			m[key] = value
		}
	}
	setOrClear(e.Annotations, corev1.EndpointsLastChangeTriggerTime, triggered.UTC().Format(time.RFC3339Nano), !triggered.IsZero())
	setOrClear(e.Annotations, corev1.EndpointsOverCapacity, "truncated", truncate(e.Subsets))
	e.Labels = map[string]string{}
	maps.Copy(e.Labels, service.Labels)
	setOrClear(e.Labels, corev1.IsHeadlessService, "", !helper.IsServiceIPSet(service))
	e.Labels[managedBy] = name
	return e
}

func (c *controller) write(ctx context.Context, key string, service *corev1.Service, current, e *corev1.Endpoints, create bool) error {
	client := c.set.Kube.CoreV1().Endpoints(service.Namespace)
	if create {
		_, err := client.Create(ctx, e, metav1.CreateOptions{})
		if err == nil || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		if apierrors.IsAlreadyExists(err) { // most likely by the last write, which the cache does not show yet
			c.frame.AddAfter(key, staleRetry)
			return nil
		}
		c.recorder.Eventf(e, corev1.EventTypeWarning, "FailedToCreateEndpoint",
			"Failed to create endpoint for service %v/%v: %v", service.Namespace, service.Name, err)
		return err
	}
	updated, err := client.Update(ctx, e, metav1.UpdateOptions{})
	if err != nil {
		c.recorder.Eventf(e, corev1.EventTypeWarning, "FailedToUpdateEndpoint",
			"Failed to update endpoint %v/%v: %v", service.Namespace, service.Name, err)
		return err
	}
	if updated.ResourceVersion != current.ResourceVersion {
		c.setReplaced(key, current.ResourceVersion)
	}
	return nil
}

func (c *controller) setReplaced(key, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version == "" {
		delete(c.replaced, key)
		return
	}
	c.replaced[key] = version
}

func (c *controller) wasReplaced(key, version string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.replaced[key] == version && version != ""
}
