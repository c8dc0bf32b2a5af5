package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// hooks are webhooks and policies for what [creations] answers, in one namespace. The webhooks
// record the objects that they get.
type hooks struct {
	t     *testing.T
	ns    string
	match admissionregistrationv1.MatchResources

	mu  sync.Mutex
	got []any
}

func installHooks(t *testing.T, ns string) *hooks {
	t.Helper()
	rule := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{"", "events.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"pods", "pods/binding", "events"},
		},
	}
	h := &hooks{t: t, ns: ns, match: admissionregistrationv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": ns}},
		ResourceRules:     []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rule}},
		MatchPolicy:       ptr.To(admissionregistrationv1.Exact),
	}}
	api := admin(t).AdmissionregistrationV1()
	none := ptr.To(admissionregistrationv1.SideEffectClassNone)
	_, err := api.MutatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "change.example.org", ClientConfig: hookServer(t, h.change), Rules: []admissionregistrationv1.RuleWithOperations{rule},
			NamespaceSelector: h.match.NamespaceSelector, MatchPolicy: h.match.MatchPolicy, SideEffects: none,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	_, err2 := api.ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "look.example.org", ClientConfig: hookServer(t, h.look), Rules: []admissionregistrationv1.RuleWithOperations{rule},
			NamespaceSelector: h.match.NamespaceSelector, MatchPolicy: h.match.MatchPolicy, SideEffects: none,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err := errors.Join(err, err2, h.policies()); err != nil {
		t.Fatal(err)
	}
	atEnd(t, func(ctx context.Context) error {
		return errors.Join(api.MutatingWebhookConfigurations().Delete(ctx, ns, metav1.DeleteOptions{}),
			api.ValidatingWebhookConfigurations().Delete(ctx, ns, metav1.DeleteOptions{}))
	})
	return h
}

// policies annotate objects, refuse those with the annotation deny, and do so, too, if they fail.
func (h *hooks) policies() error {
	api, ctx, named := admin(h.t).AdmissionregistrationV1(), h.t.Context(), metav1.ObjectMeta{Name: h.ns}
	_, err := api.ValidatingAdmissionPolicies().Create(ctx, &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: named,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &h.match, FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			Validations: []admissionregistrationv1.Validation{{
				Expression: "!('deny' in object.metadata.annotations) && size(object.metadata.managedFields) > 0", Message: "denied by policy",
			}},
		},
	}, metav1.CreateOptions{})
	_, err2 := api.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: named,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: h.ns, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}, metav1.CreateOptions{})
	_, err3 := api.MutatingAdmissionPolicies().Create(ctx, &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: named,
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: &h.match, FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType: admissionregistrationv1.PatchTypeJSONPatch,
				JSONPatch: &admissionregistrationv1.JSONPatch{
					Expression: `[JSONPatch{op: "add", path: "/metadata/finalizers", value: ["policy.example.org/x"]}]`,
				},
			}},
		},
	}, metav1.CreateOptions{})
	_, err4 := api.MutatingAdmissionPolicyBindings().Create(ctx, &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: named, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: h.ns},
	}, metav1.CreateOptions{})
	return errors.Join(err, err2, err3, err4)
}

func (h *hooks) record(by string, r *admissionv1.AdmissionRequest) (annotations map[string]any) {
	var object any
	if err := json.Unmarshal(generated.ReplaceAll(r.Object.Raw, []byte("${1}generated")), &object); err != nil {
		h.t.Error(err)
		return nil
	}
	alike(object, "")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = append(h.got, fmt.Sprint(by, r.Resource, r.SubResource), object)
	metadata, _ := object.(map[string]any)["metadata"].(map[string]any)
	annotations, _ = metadata["annotations"].(map[string]any)
	return annotations
}

// taken returns what the webhooks have got since the last call.
func (h *hooks) taken() []any {
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.got
	h.got = nil
	return got
}

// change adds a label, and spoils the managed fields if it is asked to.
func (h *hooks) change(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	annotations := h.record("change", r)
	patch := `{"op":"add","path":"/metadata/labels","value":{"hooked":"yes"}}`
	for what, fields := range map[string]string{
		"spoil": `[{"manager":"x","operation":"?"}]`, "drop": `[]`,
		"replace": `[{"manager":"hook","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]`,
	} {
		if _, ok := annotations[what]; ok {
			patch += `,{"op":"add","path":"/metadata/managedFields","value":` + fields + `}`
		}
	}
	return &admissionv1.AdmissionResponse{
		Allowed: true, Patch: []byte("[" + patch + "]"), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
	}
}

func (h *hooks) look(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	h.record("look", r)
	return &admissionv1.AdmissionResponse{Allowed: true}
}

// annotated has an annotation, and each object of these tests has one.
func annotated(body, with string) string {
	return strings.Replace(body, `"metadata":{`, `"metadata":{"annotations":{"`+with+`":"x"},`, 1)
}

var hookedTests = []creationTest{
	{name: "pod", body: annotated(plainPod, "a"), status: http.StatusCreated},
	{name: "event", path: "events", body: annotated(coreEvent, "a"), status: http.StatusCreated},
	{name: "new event", path: "new", body: annotated(newEvent, "a"), status: http.StatusCreated},
	{name: "denied", body: annotated(plainPod, "deny"), status: http.StatusUnprocessableEntity},
	{name: "spoiled fields", body: annotated(plainPod, "spoil"), status: http.StatusCreated},
	{
		name: "spoiled fields of the client", status: http.StatusCreated,
		body: annotated(`{"metadata":{"generateName":"p-","managedFields":[{"manager":"c","operation":"?"}]},`+podSpec+`}`, "spoil"),
	},
	{name: "replaced fields", body: annotated(plainPod, "replace"), status: http.StatusCreated},
	{name: "dropped fields", body: annotated(plainPod, "drop"), status: http.StatusUnprocessableEntity},
	{
		name: "binding", path: "binding", status: http.StatusCreated,
		body: annotated(`{"metadata":{"name":"%POD%"},"target":{"kind":"Node","name":"n"}}`, "a"),
	},
	{
		name: "spoiled fields of a binding", path: "binding", status: http.StatusCreated,
		body: annotated(`{"metadata":{"name":"%POD%"},"target":{"kind":"Node","name":"n"}}`, "spoil"),
	},
	{
		name: "denied binding", path: "binding", status: http.StatusUnprocessableEntity,
		body: annotated(`{"metadata":{"name":"%POD%"},"target":{"kind":"Node","name":"n"}}`, "deny"),
	},
}

// Webhooks and policies get the objects that upstream's routes give them, and do the same with
// them.
func TestCreationsWithAdmission(t *testing.T) {
	ns := namespace(t, admin(t))
	h := installHooks(t, ns)
	acts := creationTest{body: annotated(plainPod, "deny"), query: "dryRun=All"}
	eventually(t, "all of admission acts", func() (bool, error) {
		h.taken()
		denied := acts.send(t, ns, leftToUpstream)
		pod := creationTest{body: annotated(plainPod, "a"), query: "dryRun=All"}.send(t, ns, leftToUpstream)
		text := fmt.Sprint(pod.body)
		return denied.status == http.StatusUnprocessableEntity && strings.Contains(text, "hooked:yes") &&
			strings.Contains(text, "policy.example.org") && strings.Contains(fmt.Sprint(h.taken()...), "look"), fmt.Errorf("%v, %v", denied, pod)
	})
	for _, test := range hookedTests {
		t.Run(test.name, func(t *testing.T) {
			h.taken()
			usual := test.send(t, ns, leftToUpstream)
			if usual.status != test.status {
				t.Fatalf("upstream's handler answers %d: %v", usual.status, usual.body)
			}
			given := h.taken()
			if len(given) == 0 {
				t.Fatal("no webhook was called")
			}
			for _, which := range []string{"found", "remembered"} {
				if here := test.send(t, ns, runtime.ContentTypeJSON); !reflect.DeepEqual(here, usual) {
					t.Errorf("%s: %+v\ninstead of %+v", which, here, usual)
				}
				if got := h.taken(); !reflect.DeepEqual(got, given) {
					t.Errorf("%s: the webhooks get %v\ninstead of %v", which, got, given)
				}
			}
		})
	}
}
