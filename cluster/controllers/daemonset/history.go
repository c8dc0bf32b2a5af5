package daemonset

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	upstream "k8s.io/kubernetes/pkg/controller"
	labelsutil "k8s.io/kubernetes/pkg/util/labels"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/controllers/internal/adoption"
)

const hashLabel = appsv1.DefaultDaemonSetUniqueLabelKey

// history makes sure that the present template has exactly one ControllerRevision, with the highest
// number, sets d.hash from its label, and returns the revisions of other templates.
func (d *daemon) history(ctx context.Context) (old []*appsv1.ControllerRevision, err error) {
	present, err := templatePatch(d.ds)
	if err != nil {
		return nil, err
	}
	owned, err := d.claimRevisions(ctx)
	if err != nil {
		return nil, err
	}
	var current []*appsv1.ControllerRevision
	highest := int64(0) // of the old ones
	for _, revision := range owned {
		if revision.Labels[hashLabel] == "" { // made by others: its name is as unique
			labelled := revision.DeepCopy()
			labelled.Labels = labelsutil.CloneAndAddLabel(labelled.Labels, hashLabel, labelled.Name)
			if revision, err = d.updateRevision(ctx, labelled); err != nil {
				return nil, err
			}
		}
		if bytes.Equal(revision.Data.Raw, present) {
			current = append(current, revision)
		} else {
			old = append(old, revision)
			highest = max(highest, revision.Revision)
		}
	}
	var cur *appsv1.ControllerRevision
	if len(current) == 0 {
		cur, err = d.snapshot(ctx, present, highest+1)
	} else {
		cur, err = d.mergeDuplicates(ctx, current)
	}
	if err != nil {
		return nil, err
	}
	if cur.Revision <= highest { // rolled back to an earlier template
		renumbered := cur.DeepCopy()
		renumbered.Revision = highest + 1
		if cur, err = d.updateRevision(ctx, renumbered); err != nil {
			return nil, err
		}
	}
	d.hash = cur.Labels[hashLabel]
	return old, nil
}

func (d *daemon) claimRevisions(ctx context.Context) ([]*appsv1.ControllerRevision, error) {
	selector, err := d.selector()
	if err != nil {
		return nil, err
	}
	return adoption.Claim[*appsv1.ControllerRevision]{
		Owner: d.ds, Kind: kind, Selector: selector, Read: d.read,
		Patch: func(ctx context.Context, revision *appsv1.ControllerRevision, patch []byte) error {
			patched, err := d.kube.AppsV1().ControllerRevisions(revision.Namespace).Patch(ctx, revision.Name, types.StrategicMergePatchType, patch,
				metav1.PatchOptions{})
			if err == nil {
				d.writes.Wrote(d.key, d.revisionCache, patched.ResourceVersion)
			}
			return err
		},
	}.Of(ctx, adoption.Candidates[*appsv1.ControllerRevision](d.revisionCache, kind.Kind, d.ds))
}

// templatePatch is the strategic merge patch that restores the present template: what a
// ControllerRevision holds, and what kubectl applies to undo a rollout.
func templatePatch(ds *appsv1.DaemonSet) ([]byte, error) {
	raw, err := json.Marshal(ds.Spec.Template)
	if err != nil {
		return nil, err
	}
	var template map[string]any
	if err := json.Unmarshal(raw, &template); err != nil {
		return nil, err
	}
	template["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
}

// snapshot creates the present template's revision. Its name is made of the template's hash, so
// that a second attempt meets the first one's result; if it meets another template's with the same
// hash, a collision is counted, which changes the hash of the next attempt.
func (d *daemon) snapshot(ctx context.Context, patch []byte, number int64) (*appsv1.ControllerRevision, error) {
	hash := upstream.ComputeHash(&d.ds.Spec.Template, d.ds.Status.CollisionCount)
	revisions := d.kube.AppsV1().ControllerRevisions(d.ds.Namespace)
	made, err := revisions.Create(ctx, &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name:            d.ds.Name + "-" + hash,
			Namespace:       d.ds.Namespace,
			Labels:          labelsutil.CloneAndAddLabel(d.ds.Spec.Template.Labels, hashLabel, hash),
			Annotations:     d.ds.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d.ds, kind)},
		},
		Data:     runtime.RawExtension{Raw: patch},
		Revision: number,
	}, metav1.CreateOptions{})
	if err == nil {
		d.writes.Wrote(d.key, d.revisionCache, made.ResourceVersion)
		return made, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	taken, getErr := revisions.Get(ctx, d.ds.Name+"-"+hash, metav1.GetOptions{})
	if getErr != nil {
		return nil, getErr
	}
	if bytes.Equal(taken.Data.Raw, patch) { // made before a restart, and not in the cache yet
		d.writes.Wrote(d.key, d.revisionCache, taken.ResourceVersion)
		return taken, nil
	}
	ds := d.ds.DeepCopy()
	ds.Status.CollisionCount = ptr.To(ptr.Deref(ds.Status.CollisionCount, 0) + 1)
	written, updateErr := d.kube.AppsV1().DaemonSets(ds.Namespace).UpdateStatus(ctx, ds, metav1.UpdateOptions{})
	if updateErr != nil {
		return nil, updateErr
	}
	d.writes.Wrote(d.key, d.cache, written.ResourceVersion)
	return nil, err
}

// mergeDuplicates keeps the latest of several revisions of the same template. Pods of the others
// are relabelled first, or they would look as if they were to be replaced.
func (d *daemon) mergeDuplicates(ctx context.Context, current []*appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	keep := slices.MaxFunc(current, func(a, b *appsv1.ControllerRevision) int { return cmp.Compare(a.Revision, b.Revision) })
	if len(current) == 1 {
		return keep, nil
	}
	hash := keep.Labels[hashLabel]
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, hashLabel, hash)
	for _, pod := range d.all {
		if pod.Labels[hashLabel] == hash {
			continue
		}
		if err := d.controller.pods.Patch(ctx, d.key, pod, patch); err != nil {
			return nil, err
		}
	}
	for _, revision := range current {
		if revision == keep {
			continue
		}
		if err := d.deleteRevision(ctx, revision); err != nil {
			return nil, err
		}
	}
	return keep, nil
}

// pruneHistory deletes the oldest revisions beyond the limit, except those that a pod still is of.
func (d *daemon) pruneHistory(ctx context.Context, old []*appsv1.ControllerRevision) error {
	surplus := len(old) - int(ptr.Deref(d.ds.Spec.RevisionHistoryLimit, 10))
	if surplus <= 0 {
		return nil
	}
	live := map[string]bool{}
	for _, pod := range d.all {
		live[pod.Labels[hashLabel]] = true
	}
	slices.SortFunc(old, func(a, b *appsv1.ControllerRevision) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, revision := range old {
		if surplus == 0 {
			break
		}
		if live[revision.Labels[hashLabel]] {
			continue
		}
		if err := d.deleteRevision(ctx, revision); err != nil {
			return err
		}
		surplus--
	}
	return nil
}

func (d *daemon) updateRevision(ctx context.Context, revision *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	updated, err := d.kube.AppsV1().ControllerRevisions(revision.Namespace).Update(ctx, revision, metav1.UpdateOptions{})
	if err == nil {
		d.writes.Wrote(d.key, d.revisionCache, updated.ResourceVersion)
	}
	return updated, err
}

func (d *daemon) deleteRevision(ctx context.Context, revision *appsv1.ControllerRevision) error {
	err := d.kube.AppsV1().ControllerRevisions(revision.Namespace).Delete(ctx, revision.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(revision.UID))}) // a rollback makes the name again
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	d.writes.Deleted(d.key, d.revisionCache, revision)
	return nil
}
