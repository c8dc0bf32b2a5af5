package apiserver

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/coracle-project/coracle/cluster/node/token"
)

// Machines that want to join have no credentials, and may read one object.
func TestAnyoneReadsClusterInfoOnly(t *testing.T) {
	client := admin(t)
	public := client.CoreV1().ConfigMaps("kube-public")
	for _, name := range []string{"cluster-info", "other"} {
		made, err := public.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"kubeconfig": "{}"},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		atEnd(t, func(ctx context.Context) error { return public.Delete(ctx, made.Name, metav1.DeleteOptions{}) })
	}
	const all = "/api/v1/namespaces/kube-public/configmaps"
	for path, want := range map[string]int{
		all + "/cluster-info": http.StatusOK, all + "/other": http.StatusUnauthorized, all: http.StatusUnauthorized,
		all + "?fieldSelector=metadata.name%3Dcluster-info":                     http.StatusUnauthorized,
		strings.Replace(all, "kube-public", "kube-system", 1) + "/cluster-info": http.StatusUnauthorized,
	} {
		if resp, body := get(t, false, path); resp.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", path, resp.StatusCode, body, want)
		}
	}
}

// A bootstrap token asks for a certificate and looks for a node, and does nothing else.
func TestWhatBootstrapTokensMayDo(t *testing.T) {
	client := admin(t)
	secrets := client.CoreV1().Secrets("kube-system")
	made, err := secrets.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-joiner"}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": "joiner", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"auth-extra-groups": token.JoinersGroup, "expiration": time.Now().Add(time.Hour).Format(time.RFC3339),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, func(ctx context.Context) error { return secrets.Delete(ctx, made.Name, metav1.DeleteOptions{}) })
	waitSeen(t, server.Informers().Core().V1().Secrets().Informer(), func(obj any) bool { return obj.(*corev1.Secret).UID == made.UID })
	config := rest.AnonymousClientConfig(overTLS(t))
	config.BearerToken = "joiner.0123456789abcdef"
	joiner := clientOf(t, config)
	if _, err := joiner.CoreV1().Nodes().Get(t.Context(), "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("look for a node: %v", err)
	}
	requests := joiner.CertificatesV1().CertificateSigningRequests()
	if _, err := requests.Get(t.Context(), "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("look for a request: %v", err)
	}
	_, err = joiner.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("list nodes: %v", err)
	}
	if _, err = joiner.CoreV1().Secrets("kube-system").Get(t.Context(), made.Name, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("read Secrets: %v", err)
	}
	_, err = joiner.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("create a node: %v", err)
	}
}
