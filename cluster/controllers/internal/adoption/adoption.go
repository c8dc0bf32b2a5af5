// Package adoption settles which objects belong to a controlling object: ReplicaSets to a
// Deployment, pods to a ReplicaSet.
//
// An object belongs to the owner that its controller reference names. References and labels are
// brought together at each sync: an owned object whose labels no longer match the selector is
// released, an orphan whose labels match is adopted. Both are patches that carry the object's UID,
// so that they miss an object that was replaced by another of the same name. Before the first
// adoption the owner is read from the API: an owner that is being deleted (with its dependents left
// behind) must not take them back just because its cached copy is still whole.
//
// An object that vanished meanwhile is neither claimed nor an error. Other errors do not stop the
// remaining objects from being looked at; they are returned together with what was claimed.
package adoption

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/kubernetes/pkg/controller"
)

// Claim is one owner's claim on objects of type T.
type Claim[T metav1.Object] struct {
	Owner    metav1.Object
	Kind     schema.GroupVersionKind // Owner's
	Selector labels.Selector
	// Read gets Owner from the API, not from a cache.
	Read func(ctx context.Context) (metav1.Object, error)
	// Patch sends a strategic merge patch for obj.
	Patch func(ctx context.Context, obj T, patch []byte) error
	// Finalizers are set with the reference and removed with it.
	Finalizers []string
}

// Of returns those of objs that belong to the owner, after adopting and releasing what has to be.
// Adopted objects are returned as they were given: without the reference.
func (c Claim[T]) Of(ctx context.Context, objs []T) ([]T, error) {
	var (
		claimed []T
		errs    []error
		may     *adoptable // asked at most once
	)
	for _, obj := range objs {
		matches := c.Selector.Matches(labels.Set(obj.GetLabels()))
		if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
			switch {
			case ref.UID != c.Owner.GetUID():
			case matches:
				claimed = append(claimed, obj)
			case c.Owner.GetDeletionTimestamp() == nil:
				if err := c.release(ctx, obj); err != nil {
					errs = append(errs, err)
				}
			}
			continue
		}
		if !matches || c.Owner.GetDeletionTimestamp() != nil || obj.GetDeletionTimestamp() != nil ||
			obj.GetNamespace() != c.Owner.GetNamespace() {
			continue
		}
		if may == nil {
			may = c.mayAdopt(ctx)
		}
		switch err := c.adopt(ctx, obj, may); {
		case err == nil:
			claimed = append(claimed, obj)
		case !apierrors.IsNotFound(err):
			errs = append(errs, err)
		}
	}
	return claimed, utilerrors.NewAggregate(errs)
}

// adoptable is whether the owner may adopt: it may when reason is nil.
type adoptable struct{ reason error }

func (c Claim[T]) mayAdopt(ctx context.Context) *adoptable {
	now, err := c.Read(ctx)
	switch {
	case err != nil:
		return &adoptable{fmt.Errorf("read %s %s/%s: %w", c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName(), err)}
	case now.GetUID() != c.Owner.GetUID():
		return &adoptable{fmt.Errorf("%s %s/%s was replaced by another of its name", c.Kind.Kind, now.GetNamespace(), now.GetName())}
	case now.GetDeletionTimestamp() != nil:
		return &adoptable{fmt.Errorf("%s %s/%s is being deleted", c.Kind.Kind, now.GetNamespace(), now.GetName())}
	}
	return &adoptable{}
}

func (c Claim[T]) adopt(ctx context.Context, obj T, may *adoptable) error {
	if may.reason != nil {
		return fmt.Errorf("adopt %s/%s: %w", obj.GetNamespace(), obj.GetName(), may.reason)
	}
	patch, err := json.Marshal(map[string]any{"metadata": reference{
		UID:             obj.GetUID(),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c.Owner, c.Kind)},
		Finalizers:      c.Finalizers,
	}})
	if err != nil {
		return err
	}
	return c.Patch(ctx, obj, patch)
}

// reference is the part of an object's metadata that adoption sets.
type reference struct {
	UID             types.UID               `json:"uid"`
	OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
	Finalizers      []string                `json:"finalizers,omitempty"`
}

// release frees obj. That it is gone, or that the API finds the patch invalid since it is another
// object by now or has no such reference, are what was wanted.
func (c Claim[T]) release(ctx context.Context, obj T) error {
	patch, err := controller.GenerateDeleteOwnerRefStrategicMergeBytes(obj.GetUID(), []types.UID{c.Owner.GetUID()}, c.Finalizers...)
	if err != nil {
		return err
	}
	if err := c.Patch(ctx, obj, patch); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
		return err
	}
	return nil
}
