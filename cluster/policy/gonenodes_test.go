package policy

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
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
