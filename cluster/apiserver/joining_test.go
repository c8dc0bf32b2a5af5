package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

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

// The path is open to every verb. What else anonymous clients may do is RBAC's to refuse.
func TestNoOneChangesClusterInfoAnonymously(t *testing.T) {
	anonymous := clientOf(t, rest.AnonymousClientConfig(overTLS(t))).CoreV1().ConfigMaps("kube-public")
	info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": "{}"}}
	_, updated := anonymous.Update(t.Context(), info, metav1.UpdateOptions{})
	_, patched := anonymous.Patch(t.Context(), info.Name, types.MergePatchType, []byte(`{"data":{"kubeconfig":"{}"}}`), metav1.PatchOptions{})
	for verb, err := range map[string]error{
		"update": updated, "patch": patched, "delete": anonymous.Delete(t.Context(), info.Name, metav1.DeleteOptions{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want that it is forbidden", verb, err)
		}
	}
}

// The Node authorizer lets a node read its own pods. Only where machines can join, nodes read what
// agents follow.
func TestNodesReadMoreOnlyWhereMachinesJoin(t *testing.T) {
	client := fake.NewClientset()
	for _, address := range []string{"127.0.0.1", "192.0.2.1", "127.0.0.1"} { // it was opened, and closed again
		want := address == "192.0.2.1"
		work, ctx := errgroup.WithContext(t.Context())
		ensureRoles(ctx, work, client, Options{AdvertiseAddress: address}, func(runtime.Object) {})
		if err := work.Wait(); err != nil {
			t.Fatal(err)
		}
		_, err := client.RbacV1().ClusterRoleBindings().Get(t.Context(), agentRole, metav1.GetOptions{})
		if got := err == nil; got != want || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s: nodes have the role: %t, %v", address, got, err)
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
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := cert.MakeCSR(key, &pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	asked, err := requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "joiner-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: text, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("ask for a certificate: %v", err)
	}
	atEnd(t, func(ctx context.Context) error {
		return client.CertificatesV1().CertificateSigningRequests().Delete(ctx, asked.Name, metav1.DeleteOptions{})
	})
	if asked.Spec.Username != "system:bootstrap:joiner" {
		t.Errorf("the request is by %s", asked.Spec.Username)
	}
	asked.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
	}}
	if _, err = requests.UpdateApproval(t.Context(), asked.Name, asked, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("approve it: %v", err)
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
