package serviceaccount

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gopkg.in/go-jose/go-jose.v2/jwt"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/rootca"
)

const ns = apitest.Namespace

var ctx = context.Background()

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func namespace(s *apitest.Server, name string, phase corev1.NamespacePhase) {
	must(s.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NamespaceStatus{Phase: phase},
	}, metav1.CreateOptions{}))
	s.Settle()
}

func TestEveryActiveNamespaceHasADefaultAccount(t *testing.T) {
	apitest.Ours(New).As("service-account-controller").Run(t, func(t *testing.T, s *apitest.Server) {
		has := func(name string) bool {
			_, err := s.Kube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
			return err == nil
		}
		namespace(s, "active", corev1.NamespaceActive)
		namespace(s, "going", corev1.NamespaceTerminating)
		if !has("active") || has("going") {
			t.Errorf("active has one: %t, terminating has one: %t", has("active"), has("going"))
		}
		if err := s.Kube.CoreV1().ServiceAccounts("active").Delete(ctx, "default", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Settle()
		if !has("active") {
			t.Error("a deleted one does not come back")
		}
		s.Writes()
		s.Refuse(func(verb, resource string) error {
			return &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden, Details: &metav1.StatusDetails{
				Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}},
			}}}
		})
		namespace(s, "going-too", corev1.NamespaceActive)
		s.Pass(1e12)
		if w := s.Writes(); w["create serviceaccounts"] != 1 {
			t.Errorf("a namespace that refuses is asked again: %v", w)
		}
	})
}

// signer signs nothing: it returns the claims' subject.
type signer struct{}

func (signer) GenerateToken(_ context.Context, claims *jwt.Claims, _ interface{}) (string, error) {
	return "token of " + claims.Subject, nil
}

func ofTokens(set *client.Set) *frame.Controller { return NewTokens(set, signer{}, rootca.Fixed("CA")) }

func account(s *apitest.Server, name string, secrets ...string) *corev1.ServiceAccount {
	a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	for _, secret := range secrets {
		a.Secrets = append(a.Secrets, corev1.ObjectReference{Name: secret})
	}
	return must(s.Kube.CoreV1().ServiceAccounts(ns).Create(ctx, a, metav1.CreateOptions{}))
}

func secret(s *apitest.Server, name, of string, uid types.UID) {
	x := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: of}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	if uid != "" {
		x.Annotations[corev1.ServiceAccountUIDKey] = string(uid)
	}
	must(s.Kube.CoreV1().Secrets(ns).Create(ctx, x, metav1.CreateOptions{}))
	s.Settle()
}

func TestTokenSecrets(t *testing.T) {
	apitest.Ours(ofTokens).Run(t, func(t *testing.T, s *apitest.Server) {
		robot := account(s, "robot", "token", "mountable")
		secret(s, "token", "robot", "")
		got := must(s.Kube.CoreV1().Secrets(ns).Get(ctx, "token", metav1.GetOptions{}))
		for key, want := range map[string]string{"token": "token of system:serviceaccount:default:robot", "ca.crt": "CA", "namespace": ns} {
			if string(got.Data[key]) != want {
				t.Errorf("%s is %q, want %q", key, got.Data[key], want)
			}
		}
		if got.Annotations[corev1.ServiceAccountUIDKey] != string(robot.UID) {
			t.Errorf("annotations: %v", got.Annotations)
		}

		secret(s, "unrelated", "nobody", "")
		secret(s, "earlier", "robot", "uid-of-an-earlier-robot")
		for _, name := range []string{"unrelated", "earlier"} {
			if _, err := s.Kube.CoreV1().Secrets(ns).Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("%s is kept: %v", name, err)
			}
		}

		if err := s.Kube.CoreV1().Secrets(ns).Delete(ctx, "token", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Settle()
		left := must(s.Kube.CoreV1().ServiceAccounts(ns).Get(ctx, "robot", metav1.GetOptions{}))
		if len(left.Secrets) != 1 || left.Secrets[0].Name != "mountable" {
			t.Errorf("the account lists %v", left.Secrets)
		}

		secret(s, "again", "robot", "")
		if err := s.Kube.CoreV1().ServiceAccounts(ns).Delete(ctx, "robot", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Settle()
		if _, err := s.Kube.CoreV1().Secrets(ns).Get(ctx, "again", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("a token outlives its account: %v", err)
		}
	})
}

func TestOtherSecretsAreLeftAlone(t *testing.T) {
	apitest.Ours(ofTokens).Run(t, func(t *testing.T, s *apitest.Server) {
		must(s.Kube.CoreV1().Secrets(ns).Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "opaque", Annotations: map[string]string{corev1.ServiceAccountNameKey: "nobody"}},
			Type:       corev1.SecretTypeOpaque,
		}, metav1.CreateOptions{}))
		s.Settle()
		if w := s.Writes(); len(w) > 0 {
			t.Errorf("writes: %v", w)
		}
	})
}
