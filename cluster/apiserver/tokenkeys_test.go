package apiserver

import (
	"context"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	accounts "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/coracle-project/coracle/cluster/pki"
)

// anyAccount believes what a token says, if its signature is good.
type anyAccount struct{}

func (anyAccount) Validate(context.Context, string, *jwt.Claims, *struct{}) (*accounts.ServiceAccountInfo, error) {
	return &accounts.ServiceAccountInfo{Namespace: "default", Name: "a"}, nil
}

type told int

func (t *told) Enqueue() { *t++ }

// While the process runs, the key that is replaced goes on to verify the tokens that it has signed.
func TestTokenKeysAreReplaced(t *testing.T) {
	dir := t.TempDir()
	bundle := func() *pki.Bundle {
		t.Helper()
		b, err := pki.Ensure(dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	keys, err := loadServiceAccountKeys(bundle().ServiceAccountKey)
	if err != nil {
		t.Fatal(err)
	}
	var listener told
	keys.AddListener(&listener)
	sign := func() string {
		t.Helper()
		claims := &jwt.Claims{
			Subject: "system:serviceaccount:default:a", Audience: jwt.Audience{issuer}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)),
		}
		token, err := keys.GenerateToken(t.Context(), claims, struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	before := sign()
	if err := pki.Rotate(dir, pki.What{ServiceAccountKey: true}); err != nil {
		t.Fatal(err)
	}
	bundle()
	between := sign() // the file has the next key, and this process does not know it yet
	if err := keys.reload(); err != nil {
		t.Fatal(err)
	}
	after := sign()
	who := serviceaccount.JWTTokenAuthenticator([]string{issuer}, keys, authenticator.Audiences{issuer}, anyAccount{})
	for name, token := range map[string]string{"before": before, "between": between, "after": after} {
		if _, ok, err := who.AuthenticateToken(t.Context(), token); !ok || err != nil {
			t.Errorf("a token from %s the replacement: %t, %v", name, ok, err)
		}
	}
	if all := keys.GetPublicKeys(t.Context(), ""); len(all) != 2 || all[0].KeyID == all[1].KeyID {
		t.Errorf("%d keys verify", len(all))
	}
	if listener != 1 {
		t.Errorf("the listener is told %d times, want once", listener)
	}
}
