package main

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/pki"
)

// Regression: a server on all addresses was taken for another one, because its kubeconfig names
// loopback, and a leave asked the machine itself to remove it.
func TestSameServer(t *testing.T) {
	for _, c := range []struct {
		server, own string
		same        bool
	}{
		{"10.0.0.1:6443", "https://10.0.0.1:6443", true},
		{"127.0.0.1:6443", "https://localhost:6443", true},
		{"127.0.0.1:7443", "https://localhost:6443", false},
		{"192.0.2.1:6443", "https://127.0.0.1:6443", false},
	} {
		if same := sameServer(c.server, c.own); same != c.same {
			t.Errorf("%s is %s: %t", c.server, c.own, same)
		}
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if own := net.JoinHostPort(a.(*net.IPNet).IP.String(), "6443"); !sameServer(own, "https://127.0.0.1:6443") {
			t.Errorf("%s is of another machine", own)
		}
	}
}

// Regression: leave cordoned the only node, and evicted its pods, before it found that the cluster
// would end.
func TestDrainOfTheLastControlPlaneNode(t *testing.T) {
	var changed []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			changed = append(changed, r.Method+" "+r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","items":[]}`)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL, InsecureSkipTLSVerify: true}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	_, err := try(t, "controlplane", "drain", "one", "--self", "--kubeconfig", file)
	if err == nil || !strings.Contains(err.Error(), "no other API server runs") || len(changed) > 0 {
		t.Errorf("%v, %v", err, changed)
	}
}

// Regression: a machine whose API server listens on all addresses became a member of etcd at
// https://0.0.0.0, which no other member reaches, and no further machine could join.
func TestMemberURL(t *testing.T) {
	for _, bind := range []string{"127.0.0.1", "::1"} {
		if at, err := memberURL(bind, 0); err == nil || !strings.Contains(err.Error(), "--bind-address") {
			t.Errorf("on %s: %s, %v", bind, at, err)
		}
	}
	for _, bind := range []string{"0.0.0.0", "::"} { // without a way to other machines it is an error
		if at, err := memberURL(bind, 0); err == nil && (strings.Contains(at, "0.0.0.0") || strings.Contains(at, "[::]")) {
			t.Errorf("on %s: %s", bind, at)
		}
	}
}

func TestForceIsTakenBack(t *testing.T) {
	root := t.TempDir()
	if _, err := try(t, "controlplane", "force", "--root", root); err == nil {
		t.Error("a cluster of one is forced to be one")
	}
	gone := map[string]string{"one": "https://127.0.0.1:2380", "two": "https://127.0.0.1:1"}
	if err := (etcd.Peers{Name: "one", URL: gone["one"], Cluster: gone}).Write(root); err != nil {
		t.Fatal(err)
	}
	if _, err := try(t, "controlplane", "force", "--root", root); err == nil || !strings.Contains(err.Error(), "cannot be asked") {
		t.Errorf("without credentials: %v", err)
	}
	bundle, err := pki.Ensure(filepath.Join(root, "pki"), "https://127.0.0.1:6443", []string{"127.0.0.1"}, nil)
	if err == nil {
		_, err = bundle.EtcdPeer([]string{"127.0.0.1"})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  []string
		force bool
	}{{nil, true}, {[]string{"--undo"}, false}} {
		if _, err := try(t, append([]string{"controlplane", "force", "--root", root}, c.args...)...); err != nil {
			t.Fatal(err)
		}
		if peers, err := etcd.ReadPeers(root); err != nil || peers.Force != c.force {
			t.Errorf("%v: %+v, %v", c.args, peers, err)
		}
	}
}

// Keys that a join as a control-plane node has left go with the next use of the machine.
func TestAgentForgetsAnInterruptedJoin(t *testing.T) {
	root := t.TempDir()
	staging := filepath.Join(root, "pki.joining")
	if err := os.Mkdir(staging, 0o700); err != nil {
		t.Fatal(err)
	}
	input := strings.NewReader("abcdef.0123456789abcdef\n")
	cmd := command(discard, &slog.LevelVar{}, nil)
	cmd.SetIn(input)
	cmd.SetArgs([]string{"agent", "join", "https://127.0.0.1:1", "--root", root, "--ca-hash", "sha256:" + strings.Repeat("0", 64)})
	if err := cmd.ExecuteContext(t.Context()); err == nil {
		t.Error("it joins a cluster that is not there")
	}
	if _, err := os.Stat(staging); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the keys stay: %v", err)
	}
}
