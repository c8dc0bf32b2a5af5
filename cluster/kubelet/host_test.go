package kubelet

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/kubelet/pod"
)

// Commands and logs of a pod are not those of the one that had its name before, and is still
// ending.
func TestAPodIsFoundByTheNameOfAnotherThatEnds(t *testing.T) {
	view := func(uid types.UID, removed bool) pod.View {
		return pod.View{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db-0", UID: uid}}, Removed: removed}
	}
	k := &Kubelet{}
	views := []pod.View{view("old", true), view("new", false), view("older", true)}
	for range 2 {
		for uid, want := range map[types.UID]types.UID{"": "new", "new": "new", "old": "old"} {
			if p, ok := k.find(views, "ns", "db-0", uid); !ok || p.UID != want {
				t.Errorf("asked for the UID %q it finds %v", uid, p)
			}
		}
		slices.Reverse(views)
	}
	if p, ok := k.find(views[:1], "ns", "db-0", ""); !ok || p.UID != "old" {
		t.Errorf("the only one is not found, but %v", p)
	}
	if p, ok := k.find(views, "ns", "db-1", ""); ok {
		t.Errorf("it finds %v by another name", p)
	}
}
