package integration

import (
	"context"
	"fmt"
	"os"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		for name, want := range map[string]bool{"captive": false, "control": true} {
			client := fmt.Sprintf("%s-%d", name, i)
			askFor(ctx, t, ns, client, name, server, want)
			if answered(ctx, t, ns, client) != want {
				t.Errorf("%s got an answer: %v", client, !want)
			}
		}
		eventually(ctx, t, "the policy has an Event", func() (bool, error) {
			events, err := boat.kube.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=ClusterNetworkPolicy,involvedObject.name=" + wall.Name})
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
