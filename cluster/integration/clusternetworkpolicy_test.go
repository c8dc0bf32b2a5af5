package integration

import (
	"context"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"
)

// ClusterNetworkPolicies are enforced while the cluster has their definition, which comes and goes
// while it runs: from the first packet of a pod on, and their status says so. Other tests must not
// have policies at the same time.
func TestClusterNetworkPolicies(t *testing.T) {
	ctx, ns := namespace(t)
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apiextensionsv1.AddToScheme, policyv1alpha2.Install} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	c := typed(t, s)
	server := webServer(ctx, t, ns, "server")
	tables(ctx, t, 0)
	askFor(ctx, t, ns, "captive-before", "captive", server, true)
	if !answered(ctx, t, ns, "captive-before") {
		t.Fatal("the server is not reached, and there is no policy")
	}
	for i := range 2 {
		definition := defineClusterPolicies(ctx, t, c)
		wall := &policyv1alpha2.ClusterNetworkPolicy{}
		text := fmt.Sprintf(`
metadata: {name: wall-%s}
spec:
  tier: Admin
  priority: 1
  subject: {pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}, podSelector: {matchLabels: {app: captive}}}}
  egress:
  - {action: Deny, to: [{namespaces: {}}]}
  - {action: Accept, to: [{nodes: {}}]}`, ns, ns)
		if err := yaml.UnmarshalStrict([]byte(text), wall); err != nil {
			t.Fatal(err)
		}
		if err := c.Create(ctx, wall); err != nil { // it goes with its definition
			t.Fatal(err)
		}
		await(ctx, t, c, &policyv1alpha2.ClusterNetworkPolicyList{}, wall, func(p *policyv1alpha2.ClusterNetworkPolicy) bool {
			got := meta.FindStatusCondition(p.Status.Conditions, "Enforced-boat")
			return got != nil && got.Status == metav1.ConditionFalse && got.Reason == "UnsupportedRule" && got.ObservedGeneration == p.Generation
		})
		tables(ctx, t, 1)
		if i == 0 {
			forgetsNode(ctx, t, c, wall)
		}
		for name, want := range map[string]bool{"captive": false, "control": true} {
			client := fmt.Sprintf("%s-%d", name, i)
			askFor(ctx, t, ns, client, name, server, want)
			if answered(ctx, t, ns, client) != want {
				t.Errorf("%s got an answer: %v", client, !want)
			}
		}
		eventually(ctx, t, "the policy has an Event", func() (bool, error) {
			events, err := boat.kube.CoreV1().Events("").List(ctx,
				metav1.ListOptions{FieldSelector: "involvedObject.kind=ClusterNetworkPolicy,involvedObject.name=" + wall.Name})
			return err == nil && len(events.Items) > 0 && events.Items[0].Reason == "UnsupportedRule", err
		})
		if err := c.Delete(ctx, definition); err != nil {
			t.Fatal(err)
		}
		awaitEnd(ctx, t, c, &apiextensionsv1.CustomResourceDefinitionList{}, definition)
		tables(ctx, t, 0)
		askFor(ctx, t, ns, fmt.Sprintf("after-%d", i), "captive", server, true)
		if !answered(ctx, t, ns, fmt.Sprintf("after-%d", i)) {
			t.Error("the server is not reached after the policies are gone")
		}
	}
}

// forgetsNode has a node write its condition into a policy's status, and go: the condition goes
// with it, and those of others stay.
func forgetsNode(ctx context.Context, t *testing.T, c client.WithWatch, wall *policyv1alpha2.ClusterNetworkPolicy) {
	t.Helper()
	const node = "brief"
	if _, err := boat.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	status := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": policyv1alpha2.GroupVersion.String(), "kind": "ClusterNetworkPolicy", "metadata": map[string]any{"name": wall.Name},
		"status": map[string]any{"conditions": []any{map[string]any{
			"type": "Enforced-" + node, "status": "True", "reason": "Enforced", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
		}}},
	}}
	if err := c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(status), client.FieldOwner("coracle-policy-"+node)); err != nil {
		t.Fatal(err)
	}
	has := func(p *policyv1alpha2.ClusterNetworkPolicy) bool {
		return meta.FindStatusCondition(p.Status.Conditions, "Enforced-"+node) != nil
	}
	await(ctx, t, c, &policyv1alpha2.ClusterNetworkPolicyList{}, wall, has)
	if err := boat.kube.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	last := await(ctx, t, c, &policyv1alpha2.ClusterNetworkPolicyList{}, wall,
		func(p *policyv1alpha2.ClusterNetworkPolicy) bool { return !has(p) })
	if meta.FindStatusCondition(last.Status.Conditions, "Enforced-boat") == nil {
		t.Errorf("left are %+v", last.Status.Conditions)
	}
}

func defineClusterPolicies(ctx context.Context, t *testing.T, c client.WithWatch) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	data, err := os.ReadFile("testdata/clusternetworkpolicies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(ctx, crd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(context.Background(), crd) }) // unless it is gone
	return awaitServed(ctx, t, c, crd)
}
