// Package namespace empties namespaces that are being deleted and then lets them go.
//
// A namespace that is marked for deletion is made Terminating; its pods are deleted first, so that
// nothing that they use is taken from under them, then everything else that the server can delete
// in a namespace, whatever its kind. While something remains the namespace's conditions say what,
// and why it could not be deleted. When nothing does, the controller takes its finalizer
// ("kubernetes") off, upon which the server removes the namespace.
//
// A namespace is looked at when it changes and when the last of its pods has gone; if content
// remains that needs time (pods' grace periods, finalizers of others), again after about half of
// the time that it is thought to need. Errors are collected over all kinds, told in the conditions
// and repeated with the frame's back-off,
// at least once a minute.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

const (
	workers = 10
	// patience is the longest time between two tries to empty a namespace, as upstream's.
	patience = time.Minute
)

type controller struct {
	set        *client.Set
	metadata   metadata.Interface
	namespaces typedcorev1.NamespaceInterface
	lister     corelisters.NamespaceLister
	pods       corelisters.PodLister
	frame      *frame.Controller
}

// New returns the controller. It starts with a namespace when settle has passed since it was
// marked: what other API servers need to notice that nothing may be created in it any more
// (upstream: 5 s; 0 with a single server).
func New(set *client.Set, metadata metadata.Interface, settle time.Duration) *frame.Controller {
	namespaces, pods := set.Informers.Core().V1().Namespaces(), set.Informers.Core().V1().Pods()
	c := &controller{
		set: set, metadata: metadata, namespaces: set.Kube.CoreV1().Namespaces(),
		lister: namespaces.Lister(), pods: pods.Lister(),
	}
	c.frame = frame.New("namespace", workers, set.Logger(), c.sync)
	c.frame.Watch(namespaces.Informer(), func(obj any) []string {
		if ns, ok := obj.(*corev1.Namespace); ok && ns.DeletionTimestamp != nil {
			c.frame.AddAfter(ns.Name, settle)
		}
		return nil
	})
	// The pods' grace is the longest wait in a deletion: it need not be waited out.
	_, _ = pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		if pod, ok := obj.(*corev1.Pod); ok && c.emptied(pod.Namespace) {
			c.frame.Add(pod.Namespace)
		}
	}})
	return c.frame
}

// emptied reports whether a namespace is being deleted and has no pods left.
func (c *controller) emptied(name string) bool {
	ns, err := c.lister.Get(name)
	if err != nil || ns.DeletionTimestamp == nil {
		return false
	}
	left, err := c.pods.Pods(name).List(labels.Everything())
	return err == nil && len(left) == 0
}

func (c *controller) sync(ctx context.Context, name string) error {
	cached, err := c.lister.Get(name)
	if apierrors.IsNotFound(err) || err == nil && cached.DeletionTimestamp == nil {
		return nil
	}
	// Others change a namespace while it goes: begin with what it is now.
	ns, err := c.namespaces.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	if ns.DeletionTimestamp == nil || len(ns.Spec.Finalizers) == 0 {
		return nil
	}
	if ns.Status.Phase != corev1.NamespaceTerminating {
		ns, err = c.update(ctx, ns, func(ns *corev1.Namespace) (*corev1.Namespace, error) {
			ns.Status.Phase = corev1.NamespaceTerminating
			return c.namespaces.UpdateStatus(ctx, ns, metav1.UpdateOptions{})
		})
		if err != nil {
			return ignoreNotFound(err)
		}
	}

	remains, err := c.deleteContent(ctx, ns)
	if remains.reported(&ns.Status, metav1.Now()) {
		written, statusErr := c.namespaces.UpdateStatus(ctx, ns, metav1.UpdateOptions{})
		switch {
		case statusErr == nil:
			ns = written
		case !apierrors.IsConflict(statusErr) && !apierrors.IsNotFound(statusErr):
			err = errors.Join(err, statusErr)
		}
	}
	if err != nil {
		c.frame.AddAfter(name, patience) // the back-off grows far beyond it
		return err
	}
	if remains.wait > 0 {
		c.frame.AddAfter(name, remains.wait/2+time.Second)
		return nil
	}
	_, err = c.update(ctx, ns, func(ns *corev1.Namespace) (*corev1.Namespace, error) {
		ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool {
			return f == corev1.FinalizerKubernetes
		})
		return c.namespaces.Finalize(ctx, ns, metav1.UpdateOptions{})
	})
	return ignoreNotFound(err)
}

// update writes a change of a namespace, once more on what it is meanwhile if another overtook it.
func (c *controller) update(ctx context.Context, ns *corev1.Namespace,
	write func(*corev1.Namespace) (*corev1.Namespace, error),
) (*corev1.Namespace, error) {
	for latest := ns; ; {
		written, err := write(latest.DeepCopy())
		if !apierrors.IsConflict(err) {
			return written, err
		}
		if latest, err = c.namespaces.Get(ctx, ns.Name, metav1.GetOptions{}); err != nil {
			return nil, err
		}
		if latest.UID != ns.UID {
			return nil, fmt.Errorf("namespace %s was deleted and made again meanwhile", ns.Name)
		}
	}
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
