//go:build nodes

package nodes

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// rotate replaces the credentials of the cluster while it runs, twice, so that those of the first
// time are replaced, too.
func (x *across) rotate(t *testing.T) {
	ctx, one, two := t.Context(), x.all[0], x.all[1]
	before := x.token(ctx, t)
	for range 2 {
		if said := one.Must(t, "certificate", "rotate"); !strings.Contains(said, "all certificates are replaced\n") {
			t.Errorf("rotate: %s", said)
		}
		one.Must(t, "certificate", "rotate", "--service-account-key")
		isDefault(ctx, t, one, before)
		isDefault(ctx, t, one, x.token(ctx, t))
		x.reachEachOther(t) // for exec and logs, the API server calls all kubelets with its new certificate
	}
	if list := one.Must(t, "certificate", "check"); !strings.Contains(list, "apiserver.pem") {
		t.Errorf("certificate check: %s", list)
	}
	if list := two.Must(t, "certificate", "check"); !strings.Contains(list, "system:node:"+two.Name) {
		t.Errorf("certificate check on a node that has joined: %s", list)
	}
	two.Refused(t, "which signs its certificates", "certificate", "rotate")
	if status := one.Must(t, "status"); !strings.Contains(status, "expires first") {
		t.Errorf("status: %s", status)
	}
}

// token returns a new token of the default service account.
func (x *across) token(ctx context.Context, t *testing.T) string {
	t.Helper()
	accounts := x.kube.CoreV1().ServiceAccounts("default")
	made, err := accounts.CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

// isDefault has a machine's API server say that a token is the default service account's.
func isDefault(ctx context.Context, t *testing.T, m *machine, token string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(m.Root, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	as := rest.AnonymousClientConfig(config)
	as.BearerToken = token
	kube, err := kubernetes.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	who, err := kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != "system:serviceaccount:default:default" {
		t.Errorf("the token is of %+v, %v", who, err)
	}
}
