package main

import (
	"net/http"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// Regression: pods that were deleted while the API server's events were forgotten stayed for ever.
func TestFollowTellsOfPodsThatAreGone(t *testing.T) {
	pod := func(name string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: name, ResourceVersion: "1"}}
	}
	kube := fake.NewClientset(pod("stays"))
	kube.PrependWatchReactor("pods", func(ktesting.Action) (bool, watch.Interface, error) {
		w := watch.NewRaceFreeFake()
		w.Add(pod("stays"))
		w.Add(pod("goes"))
		w.Action(watch.Error, &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
		return true, w, nil
	})
	kube.PrependReactor("list", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, &v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "2"}, Items: []v1.Pod{*pod("stays")}}, nil
	})
	b := bench{kube: kube}
	var seen []string
	err := b.follow(t.Context(), "bench", metav1.ListOptions{}, nil, func(event watch.EventType, p *v1.Pod) bool {
		seen = append(seen, string(event)+" "+p.Name)
		return len(seen) == 4
	})
	if want := []string{"ADDED stays", "ADDED goes", "DELETED goes", "ADDED stays"}; err != nil || !slices.Equal(seen, want) {
		t.Errorf("%q, %v, want %q", seen, err, want)
	}
}
