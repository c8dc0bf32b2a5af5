package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// identityProvider is an issuer of JSON web tokens.
type identityProvider struct {
	url  string
	ca   string
	key  *ecdsa.PrivateKey
	asks atomic.Int64
}

// newIdentityProvider serves one; it hangs until the test ends if asked to.
func newIdentityProvider(t *testing.T, hangs bool) *identityProvider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &identityProvider{key: key}
	pair, ca := selfSigned(t, "localhost")
	p.ca = string(ca)
	over := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asks.Add(1)
		switch {
		case hangs:
			select {
			case <-over:
			case <-r.Context().Done():
			}
		case strings.HasSuffix(r.URL.Path, "/.well-known/openid-configuration"):
			writeJSON(w, map[string]any{"issuer": p.url, "jwks_uri": p.url + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"}})
		default:
			writeJSON(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Use: "sig", Algorithm: "ES256"}}})
		}
	}))
	server.TLS, server.Config.ErrorLog = &tls.Config{Certificates: []tls.Certificate{pair}}, log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(func() {
		close(over)
		server.Close()
	})
	p.url = fmt.Sprintf("https://localhost:%d", portOf(t, server.Listener.Addr().String()))
	return p
}

// token returns a token with these claims changed.
func (p *identityProvider) token(t *testing.T, change map[string]any) string {
	t.Helper()
	claims := map[string]any{
		"iss": p.url, "aud": "coracle", "sub": "jane", "groups": []string{"sailors"},
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	for name, value := range change {
		claims[name] = value
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

const authenticationHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"

// accepting is an AuthenticationConfiguration of these issuers; more is added to it.
func accepting(more string, from ...*identityProvider) string {
	var b strings.Builder
	b.WriteString(authenticationHead + more + "jwt:\n")
	for _, p := range from {
		ca := strings.ReplaceAll(strings.TrimSpace(p.ca), "\n", "\n      ")
		fmt.Fprintf(&b, `- issuer:
    url: %s
    audiences: [coracle]
    certificateAuthority: |
      %s
  claimMappings:
    username: {claim: sub, prefix: "oidc:"}
    groups: {claim: groups, prefix: "oidc:"}
`, p.url, ca)
	}
	return b.String()
}

// whoIs returns the user and groups that s takes a token's holder for, or why there is none.
func whoIs(t *testing.T, s *Server, token string) (string, error) {
	t.Helper()
	config := rest.AnonymousClientConfig(overTLSOf(t, s))
	config.BearerToken = token
	review, err := clientOf(t, config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), selfReview(), metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username + " " + strings.Join(review.Status.UserInfo.Groups, ","), nil
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestIssuersOfTokens(t *testing.T) {
	first, second, other := newIdentityProvider(t, false), newIdentityProvider(t, false), newIdentityProvider(t, false)
	o := broken(t, func(o *Options) {
		o.Authentication.Config = filepath.Join(o.Root, "authentication.yaml")
		o.Authentication.poll, o.Authentication.ask = 10*time.Millisecond, 10*time.Millisecond
	})
	refused := make(chan error, 1) // the first
	o.Authentication.refused = func(err error) {
		select {
		case refused <- err:
		default:
		}
	}
	writeFile(t, o.Authentication.Config, accepting("", first))
	s, stop := serve(t, o)
	defer stop()
	const jane = "oidc:jane oidc:sailors,system:authenticated"
	eventually(t, "the issuer's tokens are accepted", func() (bool, error) {
		got, err := whoIs(t, s, first.token(t, nil))
		return got == jane, err
	})
	forged := first.token(t, map[string]any{"groups": []string{"system:masters"}})
	if got, err := whoIs(t, s, forged); err != nil || got != "oidc:jane oidc:system:masters,system:authenticated" {
		t.Errorf("a group of the issuer's is %q, %v", got, err)
	}
	impostor := &identityProvider{url: first.url, key: other.key}
	parts := strings.Split(first.token(t, nil), ".")
	for name, token := range map[string]string{
		"another audience": first.token(t, map[string]any{"aud": "others"}),
		"expired":          first.token(t, map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}),
		"not yet valid":    first.token(t, map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), "another key": impostor.token(t, nil),
		"another issuer": other.token(t, nil), "the cluster's own issuer": first.token(t, map[string]any{"iss": issuer}),
		"no signature": "eyJhbGciOiJub25lIn0." + parts[1] + ".", "changed": parts[0] + "." + parts[1] + "x." + parts[2], "garbage": "garbage",
		"long": strings.Repeat("x", 1<<16),
	} {
		if got, err := whoIs(t, s, token); err == nil {
			t.Errorf("%s: accepted as %s", name, got)
		}
	}

	// A changed file takes effect, and one that is no good, or whose issuer does not answer,
	// changes nothing.
	writeFile(t, o.Authentication.Config, "jwt: [")
	if err := <-refused; !strings.Contains(err.Error(), o.Authentication.Config) {
		t.Error(err)
	}
	if got, err := whoIs(t, s, first.token(t, map[string]any{"sub": "paul"})); !strings.HasPrefix(got, "oidc:paul ") {
		t.Errorf("after a file that is no good: %q, %v", got, err)
	}
	writeFile(t, o.Authentication.Config, accepting("", second))
	eventually(t, "the second issuer's tokens are accepted", func() (bool, error) {
		got, err := whoIs(t, s, second.token(t, nil))
		return got == jane, err
	})
	if got, err := whoIs(t, s, first.token(t, map[string]any{"sub": "john"})); err == nil {
		t.Errorf("a token of an issuer that is no longer named: %s", got)
	}
	silent := newIdentityProvider(t, true)
	writeFile(t, o.Authentication.Config, accepting("", silent))
	eventually(t, "the silent issuer is asked", func() (bool, error) { return silent.asks.Load() > 0, nil })
	if got, err := whoIs(t, s, second.token(t, map[string]any{"sub": "mary"})); !strings.HasPrefix(got, "oidc:mary ") {
		t.Errorf("while the next issuer does not answer: %q, %v", got, err)
	}
}

// An issuer that does not answer holds up no start, and no tokens of others.
func TestAnIssuerThatHangs(t *testing.T) {
	silent := newIdentityProvider(t, true)
	o := broken(t, func(o *Options) {
		o.Authentication.Config = filepath.Join(o.Root, "authentication.yaml")
		writeFile(t, o.Authentication.Config, accepting("anonymous: {enabled: false}\n", silent))
	})
	s, stop := serve(t, o)
	defer stop()
	if got, err := whoIs(t, s, adminToken(s)); err != nil || !strings.HasPrefix(got, "admin ") {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := whoIs(t, s, silent.token(t, nil)); err == nil {
		t.Errorf("accepted as %s without keys", got)
	}
	if resp, body := as(t, s, "", "/readyz"); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("anonymous is let in: %d %s", resp.StatusCode, body)
	}
}

func TestATokenWebhook(t *testing.T) {
	var asks, broken500 atomic.Int64
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asks.Add(1)
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		switch review.Spec.Token {
		case "good":
			review.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true,
				User:          authenticationv1.UserInfo{Username: "jane", Groups: []string{"sailors"}},
			}
		case "garbage":
			_, _ = w.Write([]byte("garbage"))
			return
		case "broken":
			broken500.Add(1)
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		writeJSON(w, review)
	}))
	defer hook.Close()
	o := broken(t, func(o *Options) {
		o.Authentication.TokenWebhook, o.Authentication.TokenWebhookVersion = filepath.Join(o.Root, "webhook"), "v1"
		o.Authentication.TokenWebhookTTL = DefaultTokenWebhookTTL
		writeFile(t, o.Authentication.TokenWebhook, webhookConfig(hook.URL))
	})
	s, stop := serve(t, o)
	defer stop()
	for range 2 {
		if got, err := whoIs(t, s, "good"); err != nil || got != "jane sailors,system:authenticated" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if n := asks.Load(); n != 1 {
		t.Errorf("the webhook was asked %d times about a token", n)
	}
	for _, token := range []string{"unknown", "garbage", "broken"} {
		if got, err := whoIs(t, s, token); err == nil {
			t.Errorf("%s: accepted as %s", token, got)
		}
	}
	if broken500.Load() == 0 {
		t.Error("the webhook was not asked")
	}
	before := asks.Load()
	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	if _, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), serviceAccount("sailor"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "sailor", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := whoIs(t, s, request.Status.Token); err != nil || !strings.HasPrefix(got, "system:serviceaccount:default:sailor ") {
		t.Errorf("%q, %v", got, err)
	}
	// Nor is it shown tokens of the cluster's own that are no good: those may be good elsewhere, or
	// have been a moment ago.
	own, other := newIdentityProvider(t, false), newIdentityProvider(t, false)
	for name, token := range map[string]string{
		"changed":     request.Status.Token[:len(request.Status.Token)-8] + "AAAAAAAA",
		"expired":     own.token(t, map[string]any{"iss": issuer, "exp": time.Now().Add(-time.Hour).Unix()}),
		"in a Secret": own.token(t, map[string]any{"iss": "kubernetes/serviceaccount"}),
	} {
		if got, err := whoIs(t, s, token); err == nil {
			t.Errorf("%s: accepted as %s", name, got)
		}
	}
	if asks.Load() != before {
		t.Error("the webhook was shown a token of the cluster's own")
	}
	if _, err := whoIs(t, s, other.token(t, nil)); err == nil || asks.Load() != before+1 {
		t.Errorf("of another issuer's token the webhook was asked %d times, %v", asks.Load()-before, err)
	}
}

func webhookConfig(url string) string {
	return fmt.Sprintf(
		"apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: %q}}]\ncontexts: [{name: a, context: {cluster: "+
			"a}}]\ncurrent-context: a\n", url,
	)
}

// What is wrong with a configuration is said with its line, before anything starts.
func TestAuthenticationConfigsThatCannotBeUsed(t *testing.T) {
	issuers := func(text string) string { return authenticationHead + "jwt:\n- issuer:\n" + text }
	for name, test := range map[string]struct{ content, want string }{
		"empty":   {" \n", "the file is empty"},
		"no YAML": {authenticationHead + "jwt:\n  - [\n", "line 4"},
		"unknown field": {
			issuers("    url: https://a.example\n    audience: [a]\n  claimMappings: {username: {claim: sub, prefix: ''}}\n"),
			`unknown field "jwt[0].issuer.audience"`,
		},
		"another kind": {"apiVersion: v1\nkind: Secret\n", `no kind "Secret" is registered`},
		"no TLS": {
			issuers("    url: http://a.example\n    audiences: [a]\n  claimMappings: {username: {claim: sub, prefix: ''}}\n"),
			"line 5: jwt[0].issuer.url: Invalid value",
		},
		"no audience": {
			issuers("    url: https://a.example\n    audiences: []\n  claimMappings: {username: {claim: sub, prefix: ''}}\n"),
			"line 6: jwt[0].issuer.audiences: Required value",
		},
		"our own": {
			issuers("    url: " + issuer + "\n    audiences: [a]\n  claimMappings: {username: {claim: sub, prefix: ''}}\n"),
			"line 5: jwt[0].issuer.url: Invalid value",
		},
		"no user name": {
			issuers("    url: https://a.example\n    audiences: [a]\n  claimMappings: {username: {}}\n"),
			"jwt[0].claimMappings.username",
		},
		"no expression": {
			issuers("    url: https://a.example\n    audiences: [a]\n  claimMappings: {username: {expression: 'claims.'}}\n"),
			"jwt[0].claimMappings.username.expression",
		},
		"no authority": {
			issuers(
				"    url: https://a.example\n    audiences: [a]\n    certificateAuthority: x\n  claimMappings: {username: {claim: sub, prefix: ''}}\n",
			), "line 7: jwt[0].issuer.certificateAuthority",
		},
		"fine": {issuers("    url: https://a.example\n    audiences: [a]\n  claimMappings: {username: {claim: sub, prefix: ''}}\n"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "authentication.yaml")
			writeFile(t, file, test.content)
			err := (&AuthenticationOptions{Config: file}).Check()
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), "--authentication-config "+file) || !strings.Contains(err.Error(), test.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
	file := filepath.Join(t.TempDir(), "webhook")
	writeFile(t, file, webhookConfig("http://127.0.0.1:1"))
	for want, o := range map[string]AuthenticationOptions{
		"--authentication-config: open /nonexistent":               {Config: "/nonexistent"},
		"--authentication-token-webhook-config-file /nonexistent:": {TokenWebhook: "/nonexistent"},
		`--authentication-token-webhook-version "v2" is neither`:   {TokenWebhook: file, TokenWebhookVersion: "v2"},
	} {
		if err := o.Check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	if err := (&AuthenticationOptions{TokenWebhook: file}).Check(); err != nil {
		t.Error(err)
	}
	// The server itself refuses it, too.
	o := broken(t, func(o *Options) { o.Authentication.Config = "/nonexistent" })
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "--authentication-config: open /nonexistent") {
		t.Errorf("error %v", err)
	}
}
