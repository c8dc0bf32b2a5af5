package preemption

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// A StatefulSet's next pod has the name of the last one, and may be on another node.
func TestTheNextPodOfTheVictimsNameStays(t *testing.T) {
	next := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0", UID: "next"}}
	kube := fake.NewClientset(next)
	testkit.CheckUIDs(kube, v1.Resource("pods"), next.UID)
	pl := &Plugin{handle: &framework.Handle{
		Kube: kube, LetGo: func(*v1.Pod) bool { return false }, Recorder: events.NewFakeRecorder(10),
	}}
	victim := next.DeepCopy()
	victim.UID = "last"
	waiting := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "waiting", UID: "w"}}
	if err := pl.evictOne(t.Context(), waiting, "n", victim); err != nil {
		t.Errorf("a victim that is gone: %v", err)
	}
	found, err := kube.CoreV1().Pods("default").Get(t.Context(), "web-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Status.Conditions) > 0 {
		t.Errorf("the next pod has the victim's condition: %+v", found.Status.Conditions)
	}
}
