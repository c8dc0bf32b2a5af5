package scheduler

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// In a cluster of which each search covers a part, on several goroutines, what is recalled of nodes
// belongs to these nodes.
func TestChoiceFromRecalled(t *testing.T) {
	const nodes, part = 307, 40
	kube := fake.NewClientset()
	set := &client.Set{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}
	s, err := New(set, Options{Parallelism: 4, PercentageOfNodesToScore: part, Recorder: &events.FakeRecorder{}})
	if err != nil {
		t.Fatal(err)
	}
	room := func(i int) v1.ResourceList {
		return v1.ResourceList{
			v1.ResourceCPU: *resource.NewMilliQuantity(int64(500+i%7*300), resource.DecimalSI), v1.ResourcePods: resource.MustParse("110"),
			v1.ResourceMemory: resource.MustParse("4Gi"),
		}
	}
	for i := range nodes {
		name := fmt.Sprint("n", i)
		s.cache.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Allocatable: room(i)}})
	}
	starts := map[int]bool{}
	for i := range 400 {
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("p", i))},
			Spec: v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(int64(200+i/3%2*250), resource.DecimalSI)},
			}}}},
		}
		if i%50 == 49 { // another node in the place of one
			s.cache.RemoveNode(fmt.Sprint("n", i))
			s.cache.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i)}, Status: v1.NodeStatus{Allocatable: room(i)}})
		}
		s.cache.Update(s.snapshot)
		starts[s.next] = true
		profile, info := s.profiles[v1.DefaultSchedulerName], framework.NewPodInfo(pod)
		state := framework.NewCycleState(s.snapshot, nil)
		feasible, misfit, err := s.feasible(t.Context(), profile, state, info)
		if err != nil || misfit != nil || len(feasible) < nodes*part/100 {
			t.Fatalf("%s fits %d nodes, %v, %v", pod.Name, len(feasible), misfit, err)
		}
		for j, n := range feasible {
			if s.snapshot.Nodes[s.places[j]] != n || !profile.Filter(state, info, n).OK() {
				t.Fatalf("%s was found to fit %s", pod.Name, n.Node().Name)
			}
		}
		for place, n := range s.snapshot.Nodes {
			if got, want := profile.FilterAt(state, info, place), profile.Filter(state, info, n); got != want {
				t.Fatalf("%s on %s: recalled %v, the plugins say %v", pod.Name, n.Node().Name, got, want)
			}
		}
		got, status := profile.Score(t.Context(), state, info, feasible, s.places, s.parallel)
		got = slices.Clone(got)
		if want, _ := profile.Score(t.Context(), state, info, feasible, nil, s.parallel); !status.OK() || !slices.Equal(got, want) {
			t.Fatalf("%s: recalled scores %v (%v), of the plugins %v", pod.Name, got, status, want)
		}
		if err := s.cache.Assume(info.OnNode(feasible[highest(got)].Node().Name)); err != nil {
			t.Fatal(err)
		}
	}
	if len(starts) < 50 {
		t.Errorf("searches began at %d places", len(starts))
	}
}
