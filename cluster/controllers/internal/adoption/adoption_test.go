package adoption_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/coracle-project/coracle/cluster/controllers/internal/adoption"
)

var kind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

func owner(uid types.UID) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: uid}}
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}}}
	for _, f := range change {
		f(p)
	}
	return p
}

func ownedBy(uid types.UID) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner(uid), kind)}
		p.Finalizers = []string{"f"}
	}
}

func other(p *corev1.Pod) { p.Labels["app"] = "other" }

func deleting(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }

func TestClaim(t *testing.T) {
	gr := schema.GroupResource{Resource: "pods"}
	leaving := owner("me")
	now := metav1.Now()
	leaving.DeletionTimestamp = &now
	for name, c := range map[string]struct {
		pods     []*corev1.Pod
		owner    *appsv1.ReplicaSet // as the cache has it
		api      *appsv1.ReplicaSet // as the API has it
		patchErr error
		claimed  []string
		patched  []string
		reads    int
		fails    bool
	}{
		"own and matching":        {pods: []*corev1.Pod{pod("a", ownedBy("me"))}, claimed: []string{"a"}},
		"another's":               {pods: []*corev1.Pod{pod("a", ownedBy("you"))}},
		"own, no longer matching": {pods: []*corev1.Pod{pod("a", ownedBy("me"), other)}, patched: []string{"a"}},
		"released by others": {
			pods: []*corev1.Pod{pod("a", ownedBy("me"), other)}, patched: []string{"a"},
			patchErr: apierrors.NewInvalid(schema.GroupKind{}, "a", nil),
		},
		"release fails": {
			pods: []*corev1.Pod{pod("a", ownedBy("me"), other)}, patched: []string{"a"}, patchErr: errors.New("no"),
			fails: true,
		},
		"orphans": {
			pods: []*corev1.Pod{pod("a"), pod("b")}, claimed: []string{"a", "b"}, patched: []string{"a", "b"},
			reads: 1,
		},
		"orphan of other labels": {pods: []*corev1.Pod{pod("a", other)}},
		"orphan on its way out":  {pods: []*corev1.Pod{pod("a", deleting)}},
		"orphan vanished":        {pods: []*corev1.Pod{pod("a")}, patched: []string{"a"}, reads: 1, patchErr: apierrors.NewNotFound(gr, "a")},
		"adoption fails": {
			pods: []*corev1.Pod{pod("a"), pod("b", ownedBy("me"))}, claimed: []string{"b"}, patched: []string{"a"},
			reads: 1, patchErr: errors.New("no"), fails: true,
		},
		"owner is leaving": {
			owner: leaving, pods: []*corev1.Pod{pod("a"), pod("b", ownedBy("me"), other), pod("c", ownedBy("me"))},
			claimed: []string{"c"},
		},
		"owner is leaving, unknown":  {api: leaving, pods: []*corev1.Pod{pod("a"), pod("b")}, reads: 1, fails: true},
		"owner was replaced, unseen": {api: owner("new"), pods: []*corev1.Pod{pod("a")}, reads: 1, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.owner == nil {
				c.owner = owner("me")
			}
			if c.api == nil {
				c.api = owner("me")
			}
			reads := 0
			var patched []string
			claimed, err := adoption.Claim[*corev1.Pod]{
				Owner: c.owner, Kind: kind, Selector: labels.SelectorFromSet(labels.Set{"app": "web"}), Finalizers: []string{"f"},
				Read: func(context.Context) (metav1.Object, error) { reads++; return c.api, nil },
				Patch: func(_ context.Context, p *corev1.Pod, patch []byte) error {
					patched = append(patched, p.Name)
					before, err := json.Marshal(p)
					if err != nil {
						return err
					}
					raw, err := strategicpatch.StrategicMergePatch(before, patch, p)
					if err != nil {
						return err
					}
					var after corev1.Pod
					if err := json.Unmarshal(raw, &after); err != nil {
						return err
					}
					if mine := metav1.IsControlledBy(&after, c.owner); mine != !metav1.IsControlledBy(p, c.owner) ||
						mine != slices.Contains(after.Finalizers, "f") || after.UID != p.UID {
						t.Errorf("%s becomes %s", before, raw)
					}
					return c.patchErr
				},
			}.Of(context.Background(), c.pods)
			var names []string
			for _, p := range claimed {
				names = append(names, p.Name)
			}
			if !slices.Equal(names, c.claimed) || !slices.Equal(patched, c.patched) || reads != c.reads || (err != nil) != c.fails {
				t.Errorf("claimed %v, patched %v, %d reads, err %v", names, patched, reads, err)
			}
		})
	}
}
