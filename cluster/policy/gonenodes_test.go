package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/policy/compile"
)

// enforcedBy is a policy that these nodes enforce.
func enforcedBy(p *policyv1alpha2.ClusterNetworkPolicy, nodes ...string) *policyv1alpha2.ClusterNetworkPolicy {
	for _, node := range nodes {
		p.Status.Conditions = append(p.Status.Conditions,
			metav1.Condition{Type: conditionPrefix + node, Status: metav1.ConditionTrue, Reason: enforced})
	}
	return p
}

// Regression: the conditions of nodes that were gone stayed in the status of policies.
func TestConditionsOfNodesThatAreGone(t *testing.T) {
	t.Parallel()
	there := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	n := newTierNode(t, there("stays"), there("goes")) // this node, "here", has not registered
	n.forgets = true
	n.definitions.Add(definition(true, "v1alpha2"))
	p := enforcedBy(wall(), "here", "before", "stays", "goes")
	p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: "Accepted"})
	n.objects.Add(p)
	n.start()
	n.synced()
	forgot := func() string {
		t.Helper()
		select {
		case what := <-n.forgot:
			return what
		case <-time.After(patience):
			t.Fatal("nothing is removed")
			return ""
		}
	}
	if what := forgot(); what != "wall coracle-policy-before" {
		t.Errorf("at the start: %s", what)
	}
	n.delete(there("goes"))
	if first, second := forgot(), forgot(); first != "wall coracle-policy-before" || second != "wall coracle-policy-goes" {
		t.Errorf("when a node is deleted: %s, %s", first, second)
	}
	if len(n.forgot) > 0 {
		t.Errorf("removed, too: %s", <-n.forgot)
	}
}

// Regression: each of N nodes wrote a condition into each policy, which was sent to N nodes then.
// With hundreds of nodes, one change of a policy filled etcd.
func TestManyNodesSayOnlyWhatIsNotEnforced(t *testing.T) {
	c := newClusterPolicies(&Policy{Options: Options{NodeName: "here", Log: slog.New(slog.DiscardHandler)}})
	names := []string{"here", "in", "the", "alphabet", "later"}
	c.nodes = &nodeWatch{clusterPolicies: c, names: func() []string { return names }}
	wrote := 0
	var body policyv1alpha2.ClusterNetworkPolicy
	c.write = func(_ context.Context, _, _ string, data []byte) error {
		wrote++
		body = policyv1alpha2.ClusterNetworkPolicy{}
		return json.Unmarshal(data, &body)
	}
	good := compile.Review{Policy: wall()}
	bad := compile.Review{Policy: wall(), Problems: []compile.Problem{{Reason: compile.ReasonUnsupported, Message: "no"}}}
	told := func(what string, r compile.Review, want int, status ...metav1.ConditionStatus) {
		t.Helper()
		wrote = 0
		if err := c.writeStatus(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		var got []metav1.ConditionStatus
		for _, c := range body.Status.Conditions {
			got = append(got, c.Status)
		}
		if wrote != want || want > 0 && !slices.Equal(got, status) {
			t.Errorf("%s: written %d times, conditions %v, want %d, %v", what, wrote, got, want, status)
		}
	}
	told("one of few", good, 1, metav1.ConditionTrue)
	for i := range mostTellers - 2 {
		names = append(names, fmt.Sprintf("a-%02d", i))
	}
	told("the last that tells", good, 1, metav1.ConditionTrue)
	names = append(names, "a-last")
	told("one of many", good, 0)
	told("one of many that does not enforce it", bad, 1, metav1.ConditionFalse)
	good.Policy.Status.Conditions = []metav1.Condition{conditionOf(bad, "here")}
	told("one of many that enforces it now", good, 1)

	// Each node knows of the others, whether it removes their conditions or not.
	kube := fake.NewClientset()
	p, err := New(&client.Set{Kube: kube, Informers: client.NewInformers(kube)}, Options{
		Table: "t", NodeName: "here", API: &rest.Config{Host: "https://127.0.0.1:1"},
	})
	if err != nil || p.cluster.nodes == nil {
		t.Errorf("a node does not know of the others: %v", err)
	}
}

// Regression: with N nodes, each change of a policy had each of them look N times for something to
// put in force, since each writes a condition.
func TestConditionsWakeNoNode(t *testing.T) {
	t.Parallel()
	n := newTierNode(t)
	n.start()
	n.synced()
	n.stop() // so that what is signalled stays to be seen
	w := &objectWatch{clusterPolicies: n.p.cluster, names: map[string]bool{}}
	woken := func(o *policyv1alpha2.ClusterNetworkPolicy) bool {
		t.Helper()
		if err := w.Update(o); err != nil {
			t.Fatal(err)
		}
		select {
		case <-n.p.wake:
			return true
		default:
			return false
		}
	}
	woken(wall()) // and what was signalled before
	if woken(enforcedBy(wall(), "here", "there")) {
		t.Error("a condition wakes the node")
	}
	if got := n.p.state.ClusterPolicies(); len(got) != 1 || len(got[0].Status.Conditions) != 2 {
		t.Errorf("the status that is known is of %+v", got)
	}
	again := wall()
	again.UID = "2"
	other := wall()
	other.UID, other.Spec.Priority = "2", 7
	for name, o := range map[string]*policyv1alpha2.ClusterNetworkPolicy{"made again": again, "another spec": other} {
		if !woken(o) {
			t.Errorf("a policy that is %s wakes no one", name)
		}
	}
}
