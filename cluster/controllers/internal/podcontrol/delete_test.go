package podcontrol

import (
	"log/slog"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

// A pod that an owner has adopted may have a name that is given again.
func TestAnotherPodOfTheNameStays(t *testing.T) {
	next := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "next"}}
	kube := fake.NewClientset(next)
	testkit.CheckUIDs(kube, corev1.Resource("pods"), next.UID)
	events := record.NewFakeRecorder(10)
	c := &Control{
		Kube: kube, Events: events, Writes: freshness.New(slog.New(slog.DiscardHandler)), Cache: cache.NewStore(cache.MetaNamespaceKeyFunc),
	}
	last := next.DeepCopy()
	last.UID = "last"
	owner := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "rs"}}
	if err := c.Delete(t.Context(), owner, last); err != nil || len(events.Events) != 0 {
		t.Errorf("a pod that is gone: %v, %d events", err, len(events.Events))
	}
	if _, err := kube.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
