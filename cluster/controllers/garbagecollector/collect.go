package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// errNotServed is the error of a reference whose kind the server does not know, now.
var errNotServed = errors.New("kind is not served")

// errNamespacedOwner is the error of an object without a namespace that names an owner with one.
// Nothing fixes that but a change of the object, which will be seen.
var errNamespacedOwner = errors.New("a cluster-scoped object cannot have a namespaced owner")

// sync looks at the object with this UID.
func (c *collector) sync(ctx context.Context, uid string) error {
	it, ok := c.graph.item(types.UID(uid))
	switch {
	case !ok:
		return nil // gone, or a mere reference
	case it.state&orphaning != 0:
		return c.orphanDependents(ctx, it)
	case it.state&foreground != 0:
		return c.awaitDependents(ctx, it)
	case it.state&deleting != 0 || !it.uncertain:
		return nil
	}
	err := c.collect(ctx, it)
	switch {
	case errors.Is(err, errNotServed):
		c.frame.Log.Debug("an owner's kind is unknown", "object", it.String(), "err", err)
		c.frame.AddAfter(uid, c.graph.recheckIn(it.uid))
		return nil
	case errors.Is(err, errNamespacedOwner):
		c.frame.Log.Debug("an owner reference can never hold", "object", it.String(), "err", err)
		return nil
	}
	return err
}

// orphanDependents has all dependents of it forget their owner, then lets the owner go.
func (c *collector) orphanDependents(ctx context.Context, it item) error {
	all, _ := c.graph.dependents(it.uid)
	var errs []error
	for _, dependent := range all {
		if err := c.dropReferences(ctx, dependent, it.uid); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("orphaning the dependents of %s: %w", it, err)
	}
	return c.removeFinalizer(ctx, it, metav1.FinalizerOrphanDependents)
}

// awaitDependents lets it go once no dependent blocks its deletion.
func (c *collector) awaitDependents(ctx context.Context, it item) error {
	_, blocking := c.graph.dependents(it.uid)
	if len(blocking) == 0 {
		return c.removeFinalizer(ctx, it, metav1.FinalizerDeleteDependents)
	}
	for _, dependent := range blocking {
		if dependent.state&foreground == 0 {
			c.frame.Add(string(dependent.uid))
		}
	}
	return nil
}

// collect deletes it if none of its owners is there to keep it, and otherwise removes the
// references to those owners that are not.
func (c *collector) collect(ctx context.Context, it item) error {
	live, err := c.get(ctx, it)
	if err != nil || live == nil {
		return err // not there any more: the watch will tell
	}
	if len(live.OwnerReferences) == 0 {
		return nil
	}
	owners, err := c.classify(ctx, it, live.OwnerReferences)
	if err != nil {
		return err
	}
	if owners.unwatched {
		c.frame.AddAfter(string(it.uid), c.graph.recheckIn(it.uid))
	}
	lost := slices.Concat(owners.dangling, owners.waiting)
	if owners.solid > 0 {
		if len(lost) == 0 {
			return nil
		}
		// A waiting owner would wait forever for an object that another keeps.
		return c.dropReferences(ctx, it, lost...)
	}
	dependents, _ := c.graph.dependents(it.uid)
	if len(owners.waiting) > 0 && len(dependents) > 0 {
		// Its own dependents have to go first. If one of them waits too there may be a circle,
		// which is cut by not blocking the owner any longer.
		if slices.ContainsFunc(dependents, func(d item) bool { return d.state&foreground != 0 }) {
			if err := c.unblock(ctx, it); err != nil {
				return err
			}
		}
		return c.delete(ctx, it, live, metav1.DeletePropagationForeground)
	}
	switch { // what an earlier deletion of it asked for still holds
	case slices.Contains(live.Finalizers, metav1.FinalizerOrphanDependents):
		return c.delete(ctx, it, live, metav1.DeletePropagationOrphan)
	case slices.Contains(live.Finalizers, metav1.FinalizerDeleteDependents):
		return c.delete(ctx, it, live, metav1.DeletePropagationForeground)
	}
	return c.delete(ctx, it, live, metav1.DeletePropagationBackground)
}

type classified struct {
	solid             int
	dangling, waiting []types.UID
	// unwatched: some owner exists but no watch shows it, so that no one will tell when it goes.
	unwatched bool
}

func (c *collector) classify(ctx context.Context, it item, refs []metav1.OwnerReference) (out classified, err error) {
	for _, ref := range refs {
		where := c.graph.owner(ref, it.namespace)
		if where == elsewhere {
			c.recorder.Eventf(&corev1.ObjectReference{
				APIVersion: it.kind.apiVersion, Kind: it.kind.Kind, Namespace: it.namespace, Name: it.name, UID: it.uid,
			}, corev1.EventTypeWarning, "OwnerRefInvalidNamespace", "ownerRef %s does not exist in namespace %q",
				coordinates(ref.APIVersion, ref.Kind, it.namespace, ref.Name, ref.UID), it.namespace)
		}
		if where == unknown || where == elsewhere {
			var watched bool
			if where, watched, err = c.ask(ctx, it, ref); err != nil {
				return out, err
			}
			out.unwatched = out.unwatched || !watched
		}
		switch where {
		case gone:
			out.dangling = append(out.dangling, ref.UID)
		case waiting:
			out.waiting = append(out.waiting, ref.UID)
		default:
			out.solid++
		}
	}
	return out, nil
}

// ask has the server tell about an owner that the graph cannot vouch for; watched is false if
// nothing will tell when this answer changes.
func (c *collector) ask(ctx context.Context, it item, ref metav1.OwnerReference) (where whereabouts, watched bool, err error) {
	resource, ok := c.table.Load().ForKind(ref.APIVersion, ref.Kind)
	switch {
	case !ok:
		return unknown, false, fmt.Errorf("%s %s of owner %q: %w", ref.APIVersion, ref.Kind, ref.Name, errNotServed)
	case resource.Namespaced && it.namespace == "":
		return unknown, false, fmt.Errorf("owner %s %q: %w", ref.Kind, ref.Name, errNamespacedOwner)
	}
	owner, err := c.resource(resource, it.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return gone, true, nil
	case err != nil:
		return unknown, false, err
	case owner.UID != ref.UID:
		return gone, true, nil
	case stateOf(owner)&foreground != 0:
		return waiting, false, nil
	}
	return solid, false, nil
}

func (it item) String() string {
	return coordinates(it.kind.apiVersion, it.kind.Kind, it.namespace, it.name, it.uid)
}

// coordinates spells an object as upstream's events do.
func coordinates(apiVersion, kind, namespace, name string, uid types.UID) string {
	return fmt.Sprintf("[%s/%s, namespace: %s, name: %s, uid: %s]", apiVersion, kind, namespace, name, uid)
}
