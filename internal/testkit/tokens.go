package testkit

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TokenServer is a token service as registries delegate authentication to
// (distribution's docs/spec/auth): it checks users and signs what they may do, which the
// registry verifies with the server's certificate.
type TokenServer struct {
	*httptest.Server
	// Realm, Service and Issuer are what the registry is told; Cert is the PEM file it
	// verifies tokens with.
	Realm, Service, Issuer, Cert string
	// Users and their passwords; a refresh token is "refresh-" and the user.
	Users map[string]string

	key crypto.Signer
	der []byte

	mu    sync.Mutex
	asked []string
}

// StartTokenServer serves HTTPS with a certificate, and signs tokens with its key, which
// has to be ECDSA P-256. The server ends with the test.
func StartTokenServer(t testing.TB, cert, key string, users map[string]string) *TokenServer {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	s := &TokenServer{
		Service: "test registry", Issuer: "test issuer", Cert: cert, Users: users,
		key: pair.PrivateKey.(crypto.Signer), der: pair.Certificate[0],
	}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	s.Realm = s.URL + "/token"
	return s
}

// Asked lists the kinds of the requests so far: anonymous, password, refresh.
func (s *TokenServer) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func (s *TokenServer) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/token" || r.FormValue("service") != s.Service {
		http.NotFound(w, r)
		return
	}
	user, kind, ok := s.user(r)
	s.mu.Lock()
	s.asked = append(s.asked, kind)
	s.mu.Unlock()
	if !ok {
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"wrong user or password"}]}`, http.StatusUnauthorized)
		return
	}
	token, err := s.token(user, r.Form["scope"])
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "access_token": token, "expires_in": 300})
}

// user says who asks, and how. An anonymous user exists, and may do nothing.
func (s *TokenServer) user(r *http.Request) (user, kind string, ok bool) {
	if u, p, given := r.BasicAuth(); given {
		return u, "password", p != "" && s.Users[u] == p
	}
	switch r.FormValue("grant_type") {
	case "refresh_token":
		u, found := strings.CutPrefix(r.FormValue("refresh_token"), "refresh-")
		return u, "refresh", found && s.Users[u] != ""
	case "password":
		u := r.FormValue("username")
		return u, "password", s.Users[u] != "" && s.Users[u] == r.FormValue("password")
	}
	return "", "anonymous", true
}

// token is a JSON web token that grants a user what the scopes ask for.
func (s *TokenServer) token(user string, scopes []string) (string, error) {
	access := []map[string]any{}
	for _, list := range scopes {
		for _, scope := range strings.Fields(list) {
			parts := strings.SplitN(scope, ":", 3)
			if len(parts) == 3 && user != "" {
				access = append(access, map[string]any{"type": parts[0], "name": parts[1], "actions": strings.Split(parts[2], ",")})
			}
		}
	}
	now := time.Now()
	head, err := json.Marshal(map[string]any{"typ": "JWT", "alg": "ES256", "x5c": []string{base64.StdEncoding.EncodeToString(s.der)}})
	if err != nil {
		return "", err
	}
	claims, err := json.Marshal(map[string]any{
		"iss": s.Issuer, "sub": user, "aud": s.Service, "access": access,
		"exp": now.Add(5 * time.Minute).Unix(), "nbf": now.Add(-time.Minute).Unix(), "iat": now.Unix(), "jti": fmt.Sprint(now.UnixNano()),
	})
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString(head) + "." + base64.RawURLEncoding.EncodeToString(claims)
	hash := sha256.Sum256([]byte(text))
	r, v, err := ecdsa.Sign(rand.Reader, s.key.(*ecdsa.PrivateKey), hash[:])
	if err != nil {
		return "", err
	}
	var sig [64]byte // both numbers, each as 32 bytes (RFC 7518, section 3.4)
	r.FillBytes(sig[:32])
	v.FillBytes(sig[32:])
	return text + "." + base64.RawURLEncoding.EncodeToString(sig[:]), nil
}
