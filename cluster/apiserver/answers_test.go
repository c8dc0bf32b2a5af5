package apiserver

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
)

// An answer may be as long as its limit, which grows with the request. What is longer fails, and
// does not look complete.
func TestAnswersAreLimited(t *testing.T) {
	for name, test := range map[string]struct {
		asked, answered int
		ok              bool
	}{
		"short":                  {0, 100, true},
		"empty":                  {0, 0, true},
		"the limit":              {0, answerBase, true},
		"too long":               {0, answerBase + 1, false},
		"of a long request":      {answerBase, answerBase + answerShare*answerBase, true},
		"too long for that, too": {answerBase, answerBase + answerShare*answerBase + 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = w.Write(make([]byte, test.answered))
			}))
			defer server.Close()
			client := &http.Client{Transport: limitAnswers(server.Client().Transport)}
			resp, err := client.Post(server.URL, "text/plain", bytes.NewReader(make([]byte, test.asked)))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if test.ok != (err == nil) || test.ok && len(got) != test.answered {
				t.Errorf("%d of %d bytes, %v", len(got), test.answered, err)
			}
		})
	}
}

// endlessBody answers with a body that does not end. longest becomes the number of bytes that
// the longest answer has sent.
func endlessBody(longest *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		n, err := io.WriteString(w, `{"pad":"`)
		sent := int64(n)
		for block := strings.Repeat("a", 1<<20); err == nil && sent < hostileHeader; sent += int64(n) {
			for most := longest.Load(); sent > most && !longest.CompareAndSwap(most, sent); most = longest.Load() {
			}
			n, err = io.WriteString(w, block)
		}
	}
}

// bounded checks that the API server read some of an endless body, and all of none.
func bounded(t *testing.T, longest *atomic.Int64) {
	t.Helper()
	if n := longest.Load(); n == 0 || n > hostileHeader/2 { // the kernel's buffers take some
		t.Errorf("the API server took %d bytes", n)
	}
}

func TestEndlessAnswerToAnAdmissionReview(t *testing.T) {
	client := admin(t)
	ns := namespace(t, client)
	rules, selector := mapsIn(ns)
	var sent atomic.Int64
	_, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: ns},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "endless.example.org", ClientConfig: hookServerOf(t, endlessBody(&sent)), Rules: rules, NamespaceSelector: selector,
				SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	until(t, client, ns, func(_ *corev1.ConfigMap, err error) bool { return err != nil })
	sent.Store(0)
	_, err = client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("a", nil), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "the answer is longer than") {
		t.Error(err)
	}
	bounded(t, &sent)
}

func TestEndlessAnswerToAConversionReview(t *testing.T) {
	config := overTLS(t)
	ns := namespace(t, admin(t))
	var sent atomic.Int64
	hook := hookServerOf(t, endlessBody(&sent))
	crd := definition()
	crd.Name, crd.Spec.Group = "boats.converted.example.org", "converted.example.org"
	other := *crd.Spec.Versions[0].DeepCopy()
	other.Name, other.Storage = "v2", false
	crd.Spec.Versions = append(crd.Spec.Versions, other)
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: hook.URL, CABundle: hook.CABundle},
			ConversionReviewVersions: []string{"v1"},
		},
	}
	crds, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	definitions := crds.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := definitions.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = definitions.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}) }()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	in := func(version string) dynamic.ResourceInterface {
		return client.Resource(schema.GroupVersionResource{Group: crd.Spec.Group, Version: version, Resource: "boats"}).Namespace(ns)
	}
	eventually(t, "a boat can be made", func() (bool, error) {
		one := boat("a", 1)
		one.SetAPIVersion(crd.Spec.Group + "/v1")
		_, err := in("v1").Create(t.Context(), one, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err), err
	})
	_, err = in("v2").Get(t.Context(), "a", metav1.GetOptions{})
	if err == nil || !strings.Contains(err.Error(), "the answer is longer than") {
		t.Error(err)
	}
	bounded(t, &sent)
}

func TestEndlessAnswerToATokenReview(t *testing.T) {
	var sent atomic.Int64
	hook := httptest.NewServer(endlessBody(&sent))
	defer hook.Close()
	s, stop := serve(t, broken(t, func(o *Options) {
		o.Authentication.TokenWebhook, o.Authentication.TokenWebhookVersion = filepath.Join(o.Root, "webhook"), "v1"
		writeFile(t, o.Authentication.TokenWebhook, webhookConfig(hook.URL))
	}))
	defer stop()
	if who, err := whoIs(t, s, "any"); !apierrors.IsUnauthorized(err) {
		t.Errorf("%q, %v", who, err)
	}
	bounded(t, &sent)
}

func TestEndlessAnswerOfAnIssuer(t *testing.T) {
	pair, ca := selfSigned(t, "localhost")
	ended := make(chan *atomic.Int64, 1)
	provider := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := new(atomic.Int64)
		endlessBody(sent)(w, r)
		select {
		case ended <- sent:
		default: // it is asked again
		}
	}))
	provider.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	provider.StartTLS()
	defer provider.Close()
	p := &identityProvider{url: fmt.Sprintf("https://localhost:%d", portOf(t, provider.Listener.Addr().String())), ca: string(ca)}
	_, stop := serve(t, broken(t, func(o *Options) {
		o.Authentication.Config = filepath.Join(o.Root, "authentication.yaml")
		writeFile(t, o.Authentication.Config, accepting("", p))
	}))
	defer stop()
	select {
	case sent := <-ended:
		bounded(t, sent)
	case <-time.After(patience):
		t.Error("the issuer was not asked")
	}
}
