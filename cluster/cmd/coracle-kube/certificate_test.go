package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/go-jose/go-jose.v2/jwt"

	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/pki"
)

func TestRotateCertificates(t *testing.T) {
	root := t.TempDir()
	state, err := os.MkdirTemp("", "state") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(state) })
	place := []string{"--root", root, "--state", state}
	_, err = try(t, append([]string{"certificate", "list"}, place...)...)
	if err == nil || !strings.Contains(err.Error(), "has joined none") {
		t.Errorf("without a cluster: %v", err)
	}
	dir := filepath.Join(root, "pki")
	ensure := func() (*pki.Bundle, error) { return pki.Ensure(dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil) }
	bundle, err := ensure()
	if err != nil {
		t.Fatal(err)
	}
	serving := func() string {
		t.Helper()
		data, err := os.ReadFile(bundle.Serving)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	out, err := try(t, append([]string{"certificate", "list"}, place...)...)
	var all []pki.Certificate
	if err != nil || json.Unmarshal([]byte(out), &all) != nil || len(all) != 6 {
		t.Errorf("%s, %v", out, err)
	}
	rotate := func(want string) {
		t.Helper()
		out, err := try(t, append([]string{"certificate", "rotate", "--certificates"}, place...)...)
		if err != nil || strings.TrimSpace(out) != want {
			t.Errorf("%s, %v, want %s", out, err, want)
		}
	}
	first := serving()
	rotate(`{"running":false}`)
	if serving() != first {
		t.Error("it is replaced by a command that does not know the names of the server")
	}
	if _, err := ensure(); err != nil || serving() == first { // what the next start does
		t.Errorf("the certificate is the same after the next start, %v", err)
	}

	// A cluster process runs.
	if err := os.MkdirAll(filepath.Join(state, "kube"), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(state, "kube", profileSocket))
	if err != nil {
		t.Fatal(err)
	}
	var board health.Board
	reloads := 0
	r := &renewer{log: discard, ensure: ensure, reload: func() error { reloads++; return nil }, part: board.Add("certificates")}
	mux := http.NewServeMux()
	mux.HandleFunc(renewPath, r.answerRenew)
	server := &http.Server{Handler: mux}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	second := serving()
	rotate(`{"running":true}`)
	if serving() == second || reloads != 1 {
		t.Errorf("the running cluster has not replaced it, %d reloads", reloads)
	}
	// The clock was set back meanwhile, so the rotation is none.
	r.ensure = func() (*pki.Bundle, error) { return bundle, nil }
	for flag, want := range map[string]string{
		"--certificates": "admin.kubeconfig, apiserver.pem, ", "--service-account-key": "has not replaced service-account.pem",
	} {
		_, err = try(t, append([]string{"certificate", "rotate", flag}, place...)...)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "correct the clock") {
			t.Errorf("%s that replaces nothing: %v", flag, err)
		}
	}
	// It cannot be done now: the next renewal does it.
	r.ensure = func() (*pki.Bundle, error) { return nil, os.ErrPermission }
	_, err = try(t, append([]string{"certificate", "rotate", "--service-account-key"}, place...)...)
	if err == nil || !strings.Contains(err.Error(), "the rotation is noted, and not finished: permission denied") {
		t.Errorf("a rotation that fails: %v", err)
	}
	_ = server.Close()
	<-served
	if err := (etcd.Peers{Name: "one", URL: "https://127.0.0.1:2380"}).Write(root); err != nil {
		t.Fatal(err)
	}
	_, err = try(t, append([]string{"certificate", "rotate", "--service-account-key"}, place...)...)
	if err == nil || !strings.Contains(err.Error(), "only while there is one") {
		t.Errorf("with several control-plane nodes: %v", err)
	}
	for _, flag := range []string{"--authority", "--finish"} {
		_, err = try(t, append([]string{"certificate", "rotate", flag}, place...)...)
		if err == nil || !strings.Contains(err.Error(), "run 'coracle leave' on all others") {
			t.Errorf("%s with several control-plane nodes: %v", flag, err)
		}
	}
	if err := os.Remove(etcd.PeersFile(root)); err != nil {
		t.Fatal(err)
	}
	_, err = try(t, append([]string{"certificate", "rotate", "--authority"}, place...)...)
	if err == nil || !strings.Contains(err.Error(), "the cluster has to run") {
		t.Errorf("an authority of a cluster that does not run: %v", err)
	}
	_, err = try(t, append([]string{"certificate", "rotate", "--finish"}, place...)...)
	if err == nil || !strings.Contains(err.Error(), "no authority is being replaced") {
		t.Errorf("finished before it starts: %v", err)
	}
	key, err := os.ReadFile(bundle.ServiceAccountKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ensure(); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(bundle.ServiceAccountKey); err != nil || string(after) == string(key) {
		t.Errorf("the rotation that failed is not done by the next start, %v", err)
	}
}

// Regression: a control-plane node that was alone again kept the certificate for its peers, which
// was not renewed.
func TestCredentialsForPeersThatAreGone(t *testing.T) {
	root := t.TempDir()
	bundle, err := pki.Ensure(filepath.Join(root, "pki"), "https://127.0.0.1:1", []string{"127.0.0.1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	api := &apiOptions{root: root}
	exists := func() bool {
		t.Helper()
		peers, err := api.peers()
		if err != nil {
			t.Fatal(err)
		}
		if err := api.peerCredentials(bundle, peers); err != nil {
			t.Fatal(err)
		}
		_, err = os.Stat(bundle.EtcdFiles().Pair)
		return err == nil
	}
	if exists() {
		t.Error("a lone member has credentials for peers")
	}
	if err := (etcd.Peers{Name: "one", URL: "https://127.0.0.1:2380"}).Write(root); err != nil {
		t.Fatal(err)
	}
	if !exists() {
		t.Error("a member with peers has no credentials for them")
	}
	if err := os.Remove(etcd.PeersFile(root)); err != nil {
		t.Fatal(err)
	}
	if exists() {
		t.Error("a member that is alone again has credentials for peers")
	}
}

// A token in a Secret never expires, so it must not be signed with a key that was replaced.
func TestTokensInSecretsAreSignedWithTheNewestKey(t *testing.T) {
	dir := t.TempDir()
	ensure := func() *pki.Bundle {
		t.Helper()
		b, err := pki.Ensure(dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	tokens, err := tokenGenerator(ensure().ServiceAccountKey)
	if err != nil {
		t.Fatal(err)
	}
	keyOf := func() string {
		t.Helper()
		token, err := tokens.GenerateToken(t.Context(), &jwt.Claims{Subject: "a"}, struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := jwt.ParseSigned(token)
		if err != nil {
			t.Fatal(err)
		}
		return parsed.Headers[0].KeyID
	}
	before := keyOf()
	if err := pki.Rotate(dir, pki.What{ServiceAccountKey: true}); err != nil {
		t.Fatal(err)
	}
	ensure()
	if after := keyOf(); after == before || after == "" {
		t.Errorf("signed with key %s, and before with %s", after, before)
	}
}
