package upstream

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
)

// A kind that was not there is looked for again, but not each time.
func TestMapperLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		kube.Resources = []*metav1.APIResourceList{{
			GroupVersion: "v1",
			APIResources: []metav1.APIResource{{Name: "pods", Kind: "Pod", Namespaced: true}},
		}}
		mapper := NewMapper(kube.Discovery())
		known := func(kind schema.GroupKind) bool {
			t.Helper()
			mappings, err := mapper.RESTMappings(kind)
			return err == nil && len(mappings) == 1
		}
		boat := schema.GroupKind{Group: "sea.example.org", Kind: "Boat"}
		if !known(schema.GroupKind{Kind: "Pod"}) || known(boat) {
			t.Fatal("it does not know what there is")
		}
		kube.Resources = append(kube.Resources, &metav1.APIResourceList{
			GroupVersion: "sea.example.org/v1", APIResources: []metav1.APIResource{{Name: "boats", Kind: "Boat", Namespaced: true}},
		})
		kube.ClearActions()
		if known(boat) || len(kube.Actions()) != 0 {
			t.Errorf("it looks again at once: %v", kube.Actions())
		}
		time.Sleep(missAgain)
		if !known(schema.GroupKind{Kind: "Pod"}) || len(kube.Actions()) != 0 {
			t.Errorf("it looks again for what it knows: %v", kube.Actions())
		}
		if !known(boat) {
			t.Error("it does not find a new kind")
		}
		kube.ClearActions()
		for range 3 {
			time.Sleep(missAgain)
			if known(schema.GroupKind{Kind: "None"}) {
				t.Error("it knows a kind that does not exist")
			}
		}
		perLook := len(kube.Actions()) / 3
		known(schema.GroupKind{Kind: "None"})
		if asked := len(kube.Actions()); asked == 0 || asked != 3*perLook {
			t.Errorf("%d questions, %d for each look", asked, perLook)
		}
	})
}
