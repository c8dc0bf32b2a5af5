package garbagecollector

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/retry"

	"github.com/coracle-project/coracle/cluster/controllers/kinds"
)

func (c *collector) resource(r kinds.Resource, namespace string) metadata.ResourceInterface {
	if !r.Namespaced {
		return c.metadata.Resource(r.GroupVersionResource)
	}
	return c.metadata.Resource(r.GroupVersionResource).Namespace(namespace)
}

// get returns what the server has of it, nil if that is nothing, or another object of its name.
func (c *collector) get(ctx context.Context, it item) (*metav1.PartialObjectMetadata, error) {
	live, err := c.resource(it.kind.Resource, it.namespace).Get(ctx, it.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", it, err)
	}
	if live.UID != it.uid {
		return nil, nil
	}
	return live, nil
}

// delete deletes it as it was when live was read, at least as far as its owners go.
func (c *collector) delete(ctx context.Context, it item, live *metav1.PartialObjectMetadata, policy metav1.DeletionPropagation) error {
	remove := func(preconditions metav1.Preconditions) error {
		return c.resource(it.kind.Resource, it.namespace).Delete(ctx, it.name,
			metav1.DeleteOptions{Preconditions: &preconditions, PropagationPolicy: &policy})
	}
	err := remove(metav1.Preconditions{UID: &it.uid, ResourceVersion: &live.ResourceVersion})
	if apierrors.IsConflict(err) {
		now, getErr := c.get(ctx, it)
		switch {
		case getErr != nil:
			return getErr
		case now == nil:
			return nil
		case equality.Semantic.DeepEqual(now.OwnerReferences, live.OwnerReferences):
			// An object that changes all the time is not safe from collection by that.
			err = remove(metav1.Preconditions{UID: &it.uid})
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting %s: %w", it, err)
	}
	return nil
}

// dropReferences removes the references to these owners from it.
func (c *collector) dropReferences(ctx context.Context, it item, owners ...types.UID) error {
	return c.change(ctx, it, func(live *metav1.PartialObjectMetadata) (string, any) {
		left := slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(ref metav1.OwnerReference) bool {
			return slices.Contains(owners, ref.UID)
		})
		if len(left) == len(live.OwnerReferences) {
			return "", nil
		}
		return "ownerReferences", left
	})
}

// unblock has no owner wait for the deletion of it any longer.
func (c *collector) unblock(ctx context.Context, it item) error {
	return c.change(ctx, it, func(live *metav1.PartialObjectMetadata) (string, any) {
		refs, changed := slices.Clone(live.OwnerReferences), false
		for i := range refs {
			if refs[i].BlockOwnerDeletion != nil && *refs[i].BlockOwnerDeletion {
				refs[i].BlockOwnerDeletion, changed = new(bool), true
			}
		}
		if !changed {
			return "", nil
		}
		return "ownerReferences", refs
	})
}

func (c *collector) removeFinalizer(ctx context.Context, it item, finalizer string) error {
	return c.change(ctx, it, func(live *metav1.PartialObjectMetadata) (string, any) {
		left := slices.DeleteFunc(slices.Clone(live.Finalizers), func(f string) bool { return f == finalizer })
		if len(left) == len(live.Finalizers) {
			return "", nil
		}
		return "finalizers", left
	})
}

// change replaces one field of the metadata of it by what field computes from what the server has
// ("" for no change). A change that another overtook is computed again.
func (c *collector) change(ctx context.Context, it item, field func(*metav1.PartialObjectMetadata) (string, any)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live, err := c.get(ctx, it)
		if err != nil || live == nil {
			return err
		}
		name, value := field(live)
		if name == "" {
			return nil
		}
		// With the version that was read, so that nothing of others is overwritten: a merge patch,
		// which custom resources know as well, replaces lists as a whole.
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": it.uid, "resourceVersion": live.ResourceVersion, name: value,
		}})
		if err != nil {
			return err
		}
		_, err = c.resource(it.kind.Resource, it.namespace).Patch(ctx, it.name, types.MergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}
