package daemonset

import (
	"errors"
	"log/slog"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
)

// A revision's name is that of its template, which a DaemonSet may return to.
func TestTheNextRevisionOfTheNameStays(t *testing.T) {
	next := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ds-hash", UID: "next"}}
	kube := fake.NewClientset(next)
	kube.PrependReactor("delete", "controllerrevisions", func(action ktesting.Action) (bool, runtime.Object, error) {
		a := action.(ktesting.DeleteActionImpl)
		if p := a.DeleteOptions.Preconditions; p != nil && p.UID != nil && *p.UID != next.UID {
			return true, nil, apierrors.NewConflict(appsv1.Resource("controllerrevisions"), a.Name, errors.New("uid mismatch"))
		}
		return false, nil, nil
	})
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
