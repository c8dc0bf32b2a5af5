package kinds

import (
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/fake"
	ktesting "k8s.io/client-go/testing"
)

// server serves two versions of a group, the second of which is preferred.
type server struct {
	*fake.FakeDiscovery
	err error
}

func (s server) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	var whole *discovery.ErrGroupDiscoveryFailed
	if s.err != nil && !errors.As(s.err, &whole) {
		return nil, nil, s.err
	}
	return []*metav1.APIGroup{{Name: "example.com", PreferredVersion: metav1.GroupVersionForDiscovery{Version: "v2"}}}, s.Resources, s.err
}

func newServer(err error) server {
	verbs := metav1.Verbs{"list", "watch", "delete"}
	return server{&fake.FakeDiscovery{Fake: &ktesting.Fake{Resources: []*metav1.APIResourceList{
		{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
			{Name: "widgets", Kind: "Widget", Namespaced: true, Verbs: verbs},
			{Name: "widgets/status", Kind: "Widget", Namespaced: true, Verbs: metav1.Verbs{"get"}},
			{Name: "old", Kind: "Old", Verbs: verbs},
		}},
		{GroupVersion: "example.com/v2", APIResources: []metav1.APIResource{
			{Name: "widgets", Kind: "Widget", Namespaced: true, Verbs: verbs},
			{Name: "reviews", Kind: "Review", Verbs: metav1.Verbs{"create"}},
		}},
	}}}, err}
}

func TestEachResourceOnceInItsPreferredVersion(t *testing.T) {
	table, err := Discover(newServer(nil))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := range table.With("list", "delete") {
		got = append(got, r.Resource+" "+r.APIVersion())
	}
	if want := []string{"widgets example.com/v2", "old example.com/v1"}; !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
	if r, ok := table.ForKind("example.com/v1", "Widget"); !ok || r.Version != "v1" || !r.Namespaced {
		t.Errorf("the kind of an older reference is served by %v, %t", r, ok)
	}
	if _, ok := table.ForKind("example.com/v3", "Widget"); ok {
		t.Error("a version that is not served has a resource")
	}
	if r, ok := table.ForResource(schema.GroupResource{Group: "example.com", Resource: "widgets"}); !ok || r.Version != "v2" {
		t.Errorf("the preferred resource is %v, %t", r, ok)
	}
	if _, ok := (*Table)(nil).ForKind("v1", "Pod"); ok {
		t.Error("no table knows a kind")
	}
}

func TestDiscoveryThatFails(t *testing.T) {
	if table, err := Discover(newServer(errors.New("away"))); table != nil || err == nil {
		t.Errorf("without an answer: %v, %v", table, err)
	}
	gv := schema.GroupVersion{Group: "other.com", Version: "v1"}
	table, err := Discover(newServer(&discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{gv: errors.New("away")}}))
	if err == nil || table == nil || table.Failed[gv] == nil {
		t.Fatalf("with half an answer: %v, %v", table, err)
	}
	if _, ok := table.ForKind("example.com/v2", "Widget"); !ok {
		t.Error("what was answered is lost")
	}
}
