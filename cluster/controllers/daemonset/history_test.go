package daemonset

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

// A revision's name is that of its template, which a DaemonSet may return to.
func TestTheNextRevisionOfTheNameStays(t *testing.T) {
	next := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ds-hash", UID: "next"}}
	kube := fake.NewClientset(next)
	testkit.CheckUIDs(kube, appsv1.Resource("controllerrevisions"), next.UID)
	d := &daemon{key: "default/ds", controller: &controller{
		kube: kube, writes: freshness.New(slog.New(slog.DiscardHandler)),
		revisionCache: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil),
	}}
	last := next.DeepCopy()
	last.UID = "last"
	if err := d.deleteRevision(t.Context(), last); err != nil {
		t.Errorf("a revision that is gone: %v", err)
	}
	if _, err := kube.AppsV1().ControllerRevisions("default").Get(t.Context(), next.Name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
