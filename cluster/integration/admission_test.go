package integration

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// configMapRule matches what is written to ConfigMaps.
func configMapRule(operations ...admissionregistrationv1.OperationType) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{Operations: operations, Rule: admissionregistrationv1.Rule{
		APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"},
	}}
}

// within selects a namespace: the cluster is everybody's.
func within(ns string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}
}

// create makes an object that is not namespaced and ends with the test.
func create(ctx context.Context, t *testing.T, c client.Client, obj client.Object) {
	t.Helper()
	if err := c.Create(ctx, obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Delete(context.Background(), obj); err != nil { // the test's own context has ended
			t.Error(err)
		}
	})
}

// Webhooks, written with controller-runtime and served by the test, change what is written, refuse
// it, warn, are asked again when a later one has changed the object, and are heeded or not when
// they fail.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	c := typed(t, nil)
	var paints atomic.Int32
	mux := http.NewServeMux()
	serve := func(path string, handler admission.HandlerFunc) {
		mux.Handle(path, &webhook.Admission{Handler: handler})
	}
	change := func(req admission.Request, change func(*corev1.ConfigMap)) admission.Response {
		cm := &corev1.ConfigMap{}
		if err := json.Unmarshal(req.Object.Raw, cm); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		change(cm)
		raw, err := json.Marshal(cm)
		if err != nil {
			return admission.Errored(http.StatusInternalServerError, err)
		}
		return admission.PatchResponseFromRaw(req.Object.Raw, raw)
	}
	serve("/paint", func(_ context.Context, req admission.Request) admission.Response {
		if req.Name == "good" { // there are others: the root CA's
			paints.Add(1)
		}
		return change(req, func(cm *corev1.ConfigMap) {
			if cm.Data["coat"] == "" {
				cm.Data = map[string]string{"coat": "tar"}
			}
			if cm.Labels["inspected"] != "" {
				metav1.SetMetaDataAnnotation(&cm.ObjectMeta, "saw", "the label of the one after it")
			}
		})
	})
	serve("/inspect", func(_ context.Context, req admission.Request) admission.Response {
		return change(req, func(cm *corev1.ConfigMap) {
			metav1.SetMetaDataLabel(&cm.ObjectMeta, "inspected", req.UserInfo.Username)
		})
	})
	serve("/judge", func(_ context.Context, req admission.Request) admission.Response {
		switch {
		case req.Operation == "DELETE" && strings.Contains(string(req.OldObject.Raw), "moored"):
			return admission.Denied("it is moored")
		case strings.Contains(string(req.Object.Raw), "holes"):
			return admission.Denied("it leaks")
		}
		return admission.Allowed("").WithWarnings("mind the tide")
	})
	server := httptest.NewTLSServer(mux)
	defer server.Close()
	dead := httptest.NewTLSServer(nil)
	dead.Close() // no one listens there
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	at := func(base, path string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{URL: ptr.To(base + path), CABundle: ca}
	}
	mutating := func(name, path string) admissionregistrationv1.MutatingWebhook {
		return admissionregistrationv1.MutatingWebhook{
			Name: name, ClientConfig: at(server.URL, path), NamespaceSelector: within(ns), AdmissionReviewVersions: []string{"v1"},
			Rules:              []admissionregistrationv1.RuleWithOperations{configMapRule("CREATE")},
			SideEffects:        ptr.To(admissionregistrationv1.SideEffectClassNone),
			ReinvocationPolicy: ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy),
		}
	}
	validating := func(name, base, path string, policy admissionregistrationv1.FailurePolicyType,
		match string,
	) admissionregistrationv1.ValidatingWebhook {
		return admissionregistrationv1.ValidatingWebhook{
			Name: name, ClientConfig: at(base, path), NamespaceSelector: within(ns), AdmissionReviewVersions: []string{"v1"},
			Rules:         []admissionregistrationv1.RuleWithOperations{configMapRule("CREATE", "DELETE")},
			SideEffects:   ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy: &policy, MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "which", Expression: match}},
		}
	}
	create(ctx, t, c, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			mutating("a.paint.example.org", "/paint"),
			mutating("b.inspect.example.org", "/inspect"),
		},
	})
	create(ctx, t, c, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{
			validating("judge.example.org", server.URL, "/judge", admissionregistrationv1.Fail, "true"),
			validating("lenient.example.org", dead.URL, "/", admissionregistrationv1.Ignore, "true"),
			validating("strict.example.org", dead.URL, "/", admissionregistrationv1.Fail,
				"object != null && has(object.metadata.labels) && 'strict' in object.metadata.labels"),
		},
	})

	boatMap := func(name string, data map[string]string, labels map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns, Labels: labels}, Data: data}
	}
	eventually(ctx, t, "both configurations take effect", func() (bool, error) {
		cm := boatMap("probe", map[string]string{"holes": "3"}, nil)
		err := c.Create(ctx, cm, client.DryRunAll)
		probe := boatMap("probe", nil, nil)
		return apierrors.IsForbidden(err) && c.Create(ctx, probe, client.DryRunAll) == nil && probe.Labels["inspected"] != "", err
	})
	cm := boatMap("good", nil, nil)
	if err := c.Create(ctx, cm); err != nil {
		t.Fatal(err)
	}
	if cm.Data["coat"] != "tar" || cm.Labels["inspected"] != "kubernetes-admin" || cm.Annotations["saw"] == "" || paints.Load() != 2 {
		t.Errorf("the webhooks (the first asked %d times) made %v", paints.Load(), cm)
	}
	err := c.Create(ctx, boatMap("bad", map[string]string{"holes": "3"}, nil))
	if !apierrors.IsForbidden(err) || err.Error() != `admission webhook "judge.example.org" denied the request: it leaks` {
		t.Errorf("the refusal is %v", err)
	}
	err = c.Create(ctx, boatMap("strict", nil, map[string]string{"strict": ""}))
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), `failed calling webhook "strict.example.org"`) {
		t.Errorf("without its webhook: %v", err)
	}
	moored := boatMap("moored", map[string]string{"coat": "moored"}, nil)
	if err := c.Create(ctx, moored); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(ctx, moored); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "it is moored") {
		t.Errorf("the deletion: %v", err)
	}
}

// A CEL policy with parameters judges requests as its bindings say: refuse, warn.
func TestValidatingAdmissionPolicy(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	c := typed(t, nil)
	limit := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "limit", Namespace: ns}, Data: map[string]string{"most": "3"}}
	if err := c.Create(ctx, limit); err != nil {
		t.Fatal(err)
	}
	rule := admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: configMapRule("CREATE", "UPDATE")}
	create(ctx, t, c, &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			ParamKind:        &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{rule}},
			MatchConditions:  []admissionregistrationv1.MatchCondition{{Name: "not-itself", Expression: "object.metadata.name != 'limit'"}},
			Variables: []admissionregistrationv1.Variable{
				{Name: "seats", Expression: "has(object.data) && 'seats' in object.data ? int(object.data.seats) : 0"},
			},
			Validations: []admissionregistrationv1.Validation{
				{
					Expression:        "variables.seats <= int(params.data.most)",
					MessageExpression: "string(variables.seats) + ' seats are more than ' + params.data.most",
				},
				{
					Expression: "namespaceObject.metadata.name == request.namespace && (oldObject == null || object.metadata.uid == " +
						"oldObject.metadata.uid)",
				},
			},
		},
	})
	create(ctx, t, c, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: ns,
			ParamRef: &admissionregistrationv1.ParamRef{
				Name: "limit", Namespace: ns,
				ParameterNotFoundAction: ptr.To(admissionregistrationv1.DenyAction),
			},
			MatchResources:    &admissionregistrationv1.MatchResources{NamespaceSelector: within(ns)},
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	})
	seats := func(n string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "coracle", Namespace: ns}, Data: map[string]string{"seats": n}}
	}
	var err error
	eventually(ctx, t, "the policy takes effect", func() (bool, error) {
		err = c.Create(ctx, seats("4"), client.DryRunAll)
		return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "seats"), err
	})
	want := "ValidatingAdmissionPolicy '" + ns + "' with binding '" + ns + "' denied request: 4 seats are more than 3"
	if !strings.Contains(err.Error(), want) {
		t.Errorf("the refusal is %v, want %s", err, want)
	}
	if err := c.Create(ctx, seats("3")); err != nil {
		t.Errorf("within the limit: %v", err)
	}
	limit.Data["most"] = "2"
	if err := c.Update(ctx, limit); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the new parameter takes effect", func() (bool, error) {
		cm := seats("3")
		cm.Name = "second"
		err := c.Create(ctx, cm, client.DryRunAll)
		return apierrors.IsInvalid(err), err
	})
}
