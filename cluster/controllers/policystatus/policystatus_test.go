package policystatus

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/coracle-project/coracle/cluster/apiserver/servertest"
	"github.com/coracle-project/coracle/cluster/client"
)

// serve runs an API server and the controller, as its service account, until the test ends, and
// returns a Set of an administrator. Only a real server has the types that expressions are compared
// with.
func serve(t *testing.T) *client.Set {
	t.Helper()
	server := servertest.New(t, servertest.Options(t))
	const account = "validatingadmissionpolicy-status-controller"
	own, err := client.New(server.ClientConfig(serviceaccount.MakeUsername(metav1.NamespaceSystem, account),
		serviceaccount.MakeGroupNames(metav1.NamespaceSystem)...), server.Informers(), nil)
	if err != nil {
		t.Fatal(err)
	}
	controller := New(own)
	admin, err := client.New(server.ClientConfig("test", "system:masters"), server.Informers(), nil)
	if err != nil {
		t.Fatal(err)
	}
	servertest.Run(t, server)
	go controller.Run(t.Context())
	return admin
}

func TestExpressionsThatDoNotFitAreTold(t *testing.T) {
	policies := serve(t).Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "replicas"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
				},
			}}},
			Validations: []admissionv1.Validation{{Expression: "object.spec.replicas > 1"}, {Expression: "object.spec.sails > 1"}},
		},
	}
	watch, err := policies.Watch(t.Context(),
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", policy.Name).String()})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if _, err := policies.Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range watch.ResultChan() {
		got := e.Object.(*admissionv1.ValidatingAdmissionPolicy)
		if got.Status.ObservedGeneration < got.Generation {
			continue
		}
		w := got.Status.TypeChecking.ExpressionWarnings
		if len(w) != 1 || w[0].FieldRef != "spec.validations[1].expression" || !strings.Contains(w[0].Warning, "sails") {
			t.Errorf("warnings %+v", w)
		}
		return
	}
	t.Error("the watch ended before the policy was looked at")
}
