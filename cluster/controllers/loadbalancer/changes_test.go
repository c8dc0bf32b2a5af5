package loadbalancer

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Heartbeats and endpoints that decide nothing have no Services looked at: there are thousands of
// them.
func TestChangesThatDecideNothing(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{}}, Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}
		change(n)
		return n
	}
	before := node(func(*corev1.Node) {})
	for name, tc := range map[string]struct {
		after  *corev1.Node
		decide bool
	}{
		"a heartbeat":         {node(func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.Now() }), false},
		"another label":       {node(func(n *corev1.Node) { n.Labels["a"] = "b" }), false},
		"not ready":           {node(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }), true},
		"another address":     {node(func(n *corev1.Node) { n.Status.Addresses[0].Address = "192.0.2.2" }), true},
		"left to other nodes": {node(func(n *corev1.Node) { n.Labels[corev1.LabelNodeExcludeBalancers] = "" }), true},
	} {
		if got := nodeChanged(before, tc.after) != nil; got != tc.decide {
			t.Errorf("%s: decides: %v, want %v", name, got, tc.decide)
		}
	}
	if nodeChanged(nil, before) == nil || nodeChanged(before, nil) == nil {
		t.Error("a node that comes or goes decides nothing")
	}

	services := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	for name, policy := range map[string]corev1.ServiceExternalTrafficPolicy{
		"local": corev1.ServiceExternalTrafficPolicyLocal,
		"any":   corev1.ServiceExternalTrafficPolicyCluster,
	} {
		if err := services.Add(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: policy},
		}); err != nil {
			t.Fatal(err)
		}
	}
	c := &controller{services: services}
	for name, want := range map[string]bool{"local": true, "any": false, "none": false} {
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: "a",
			Labels:    map[string]string{discoveryv1.LabelServiceName: name},
		}}
		if got := c.ofLocal(slice) != nil; got != want {
			t.Errorf("endpoints of Service %s decide: %v, want %v", name, got, want)
		}
	}
}
