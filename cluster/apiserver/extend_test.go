package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// definition is of boats, which have a number of seats from 1 to 4.
func definition() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boats.example.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "boats", Singular: "boat", Kind: "Boat", ListKind: "BoatList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
							"seats": {
								Type: "integer", Minimum: ptr.To(1.0), Description: "How many can sit.",
								XValidations: apiextensionsv1.ValidationRules{{Rule: "self < 5", Message: "a coracle is light"}},
							},
						}},
						"status": {Type: "object", XPreserveUnknownFields: ptr.To(true)},
					},
				}},
			}},
		},
	}
}

func boat(name string, seats int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.org/v1", "kind": "Boat", "metadata": map[string]any{"name": name}, "spec": map[string]any{"seats": seats},
	}}
}

func TestCustomResources(t *testing.T) {
	config := overTLS(t)
	client := admin(t)
	ns := namespace(t, client)
	crds, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	definitions := crds.ApiextensionsV1().CustomResourceDefinitions()
	made, err := definitions.Create(t.Context(), definition(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := definitions.Watch(t.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", made.Name).String(), ResourceVersion: made.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	for established := false; !established; {
		e := <-events.ResultChan()
		for _, c := range e.Object.(*apiextensionsv1.CustomResourceDefinition).Status.Conditions {
			established = established || c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
		}
	}
	any, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	boats := any.Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "boats"}).Namespace(ns)
	watch, err := boats.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if _, err := boats.Create(t.Context(), boat("a", 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-watch.ResultChan(); e.Object.(*unstructured.Unstructured).GetName() != "a" {
		t.Errorf("event %+v", e)
	}
	if _, err := boats.Create(t.Context(), boat("b", 0), metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "spec.seats") {
		t.Errorf("no seats: %v", err)
	}
	if _, err := boats.Create(t.Context(), boat("c", 9), metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "a coracle is light") {
		t.Errorf("too many seats: %v", err)
	}
	if _, err := boats.Apply(t.Context(), "a", boat("a", 2), metav1.ApplyOptions{FieldManager: "other"}); !apierrors.IsConflict(err) {
		t.Errorf("apply over another's field: %v", err)
	}
	patched, err := boats.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"status":{"x":1},"spec":{"seats":3}}`), metav1.PatchOptions{})
	if seats, _, _ := unstructured.NestedInt64(patched.Object, "spec", "seats"); err != nil || seats != 3 || patched.Object["status"] != nil {
		t.Errorf("patch: %v, %v", patched, err)
	}

	t.Run("discovery", func(t *testing.T) {
		eventually(t, "the group is in both lists", func() (bool, error) { // which follow the definition
			groups, err := clientOf(t, config).Discovery().ServerGroups()
			if err != nil {
				return false, err
			}
			found := slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == "example.org" })
			_, plain := get(t, true, "/apis", "Accept", "application/json")
			return found && strings.Contains(string(plain), `"groupVersion":"example.org/v1"`), fmt.Errorf("%v, %s", groups, plain)
		})
	})
	t.Run("OpenAPI", func(t *testing.T) {
		var v2 []byte
		eventually(t, "all documents have the boats", func() (bool, error) {
			_, index := get(t, true, "/openapi/v3")
			_, v3 := get(t, true, "/openapi/v3/apis/example.org/v1", "Accept", "application/json")
			_, v2 = get(t, true, "/openapi/v2", "Accept", "application/json")
			found := strings.Contains(string(index), `"apis/example.org/v1"`) && strings.Contains(string(v3), "How many can sit.") &&
				strings.Contains(string(v2), "How many can sit.")
			return found, fmt.Errorf("%d bytes of index, %d of v3, %d of v2", len(index), len(v3), len(v2))
		})
		if !strings.Contains(string(v2), "DeploymentSpec") {
			t.Error("the v2 document has the boats only")
		}
	})
	if err := definitions.Delete(t.Context(), made.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// hookServer serves answer as a webhook, and returns what a configuration needs to call it.
func hookServer(t *testing.T,
	answer func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse,
) admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	return hookServerOf(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(data, &review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = answer(review.Request)
		review.Response.UID = review.Request.UID
		_ = json.NewEncoder(w).Encode(review)
	})
}

func hookServerOf(t *testing.T, handler http.HandlerFunc) admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	hook := httptest.NewUnstartedServer(handler)
	hook.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	hook.StartTLS()
	t.Cleanup(hook.Close)
	return admissionregistrationv1.WebhookClientConfig{
		URL: ptr.To(hook.URL), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}
}

func mapsIn(ns string) ([]admissionregistrationv1.RuleWithOperations, *metav1.LabelSelector) {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}, &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": ns}}
}

// until makes dry-run config maps until one meets with what is wanted: admission reads its
// configuration from informers, some time after it was made.
func until(t *testing.T, client kubernetes.Interface, ns string, wanted func(*corev1.ConfigMap, error) bool) {
	t.Helper()
	eventually(t, "admission acts", func() (bool, error) {
		m, err := client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("a", map[string]string{"k": "v"}),
			metav1.CreateOptions{DryRun: []string{"All"}})
		return wanted(m, err), err
	})
}

func TestWebhooks(t *testing.T) {
	client := admin(t)
	ns := namespace(t, client)
	rules, selector := mapsIn(ns)
	none := ptr.To(admissionregistrationv1.SideEffectClassNone)
	mutating := hookServer(t, func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{
			Allowed: true, Patch: []byte(`[{"op":"add","path":"/data/hooked","value":"yes"}]`), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
		}
	})
	_, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(),
		&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: ns},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name: "change.example.org", ClientConfig: mutating, Rules: rules, NamespaceSelector: selector, SideEffects: none,
				AdmissionReviewVersions: []string{"v1"},
			}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	until(t, client, ns, func(m *corev1.ConfigMap, err error) bool { return err == nil && m.Data["hooked"] == "yes" })

	validating := hookServer(t, func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Allowed: false, Result: &metav1.Status{Message: "not on " + string(r.Operation)}}
	})
	_, err = client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: ns},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "deny.example.org", ClientConfig: validating, Rules: rules, NamespaceSelector: selector, SideEffects: none,
				AdmissionReviewVersions: []string{"v1"},
			}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	until(t, client, ns, func(_ *corev1.ConfigMap, err error) bool {
		return err != nil && strings.Contains(err.Error(), `admission webhook "deny.example.org" denied the request: not on CREATE`)
	})
}

func TestPolicies(t *testing.T) {
	client := admin(t)
	ns := namespace(t, client)
	rules, selector := mapsIn(ns)
	api := client.AdmissionregistrationV1()
	_, err := api.ValidatingAdmissionPolicies().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: selector, ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rules[0]}},
			},
			Validations: []admissionregistrationv1.Validation{{Expression: "size(object.metadata.name) > 3", Message: "the name is too short"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: ns, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	until(t, client, ns, func(_ *corev1.ConfigMap, err error) bool {
		return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "the name is too short")
	})
}
