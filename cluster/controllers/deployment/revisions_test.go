package deployment

import (
	"log/slog"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

// A ReplicaSet's name is that of its template, which a Deployment may return to.
func TestTheNextReplicaSetOfTheNameStays(t *testing.T) {
	next := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "d-hash", UID: "next"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32)},
	}
	kube := fake.NewClientset(next)
	testkit.CheckUIDs(kube, appsv1.Resource("replicasets"), next.UID)
	last := next.DeepCopy()
	last.UID = "last"
	r := &rollout{
		key: "default/d", d: &appsv1.Deployment{Spec: appsv1.DeploymentSpec{RevisionHistoryLimit: new(int32)}}, old: []*appsv1.ReplicaSet{last},
		controller: &controller{
			kube: kube, writes: freshness.New(slog.New(slog.DiscardHandler)),
			setCache: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil),
		},
	}
	if err := r.prune(t.Context()); err != nil {
		t.Errorf("a ReplicaSet that is gone: %v", err)
	}
	if _, err := kube.AppsV1().ReplicaSets("default").Get(t.Context(), next.Name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
