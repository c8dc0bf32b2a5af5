package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/cmd/coracle/kubesocket/kubesockettest"
)

// serveKube answers on the cluster process's socket of a place with handlers, by path.
func serveKube(t *testing.T, handlers map[string]http.HandlerFunc) place {
	t.Helper()
	dir, err := os.MkdirTemp("", "coracle-") // not t.TempDir: socket paths have to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	if err := os.MkdirAll(filepath.Dir(p.kubeSocket()), 0o700); err != nil {
		t.Fatal(err)
	}
	kubesockettest.Serve(t, p.kubeSocket(), handlers)
	return p
}

// runCommand runs the command line in a place and returns what it prints.
func runCommand(t *testing.T, p place, args ...string) (string, error) {
	t.Helper()
	cmd := command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append(args, "--root", p.root, "--state", p.state))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

const answered = `{"source": {"asked": "pod/cart", "kind": "pod", "name": "shop/cart", "node": "here", "addresses": ["10.85.0.2"]},
 "destination": {"asked": "web", "kind": "name", "name": "web.shop.svc.cluster.local.", "addresses": ["10.96.0.20"]},
 "notes": ["something"],
 "connections": [
  {"destination": "10.96.0.20:80", "protocol": "TCP", "verdict": "partly", "because": "policies deny 1 of 2 endpoints",
   "service": {"name": "shop/web", "port": "http", "way": "cluster address", "localOnly": true, "affinitySeconds": 60, "masquerade": true},
   "endpoints": [
    {"address": "10.85.0.5:8080", "pod": "shop/web-3", "node": "here", "used": false, "because": "it is not ready"},
    {"address": "10.85.0.3:8080", "pod": "shop/web-1", "node": "here", "used": true, "policy": {"allowed": true, "egress": {"allowed": true}, "ingress": {"allowed": true, "selecting": ["shop/a"], "allowing": ["shop/a"]}}},
    {"address": "10.85.0.4:8080", "pod": "shop/web-2", "node": "here", "used": true, "policy": {"allowed": false, "egress": {"allowed": true, "because": "the other end is the node"}, "ingress": {"allowed": false, "selecting": ["shop/a", "shop/b"]}}}]},
  {"destination": "203.0.113.5:443", "protocol": "TCP", "verdict": "reached", "endpoints": [{"address": "203.0.113.5:443", "used": true}]},
  {"destination": "192.0.2.10:22", "protocol": "TCP", "verdict": "reached", "endpoints": [{"address": "192.0.2.10:22", "node": "here", "used": true}]}]}`

const printed = `from  pod shop/cart (10.85.0.2) on node here
to    name web.shop.svc.cluster.local. (10.96.0.20)
note  something

10.96.0.20:80/TCP: partly: policies deny 1 of 2 endpoints
  cluster address of Service shop/web, port http; its traffic policy is Local: only endpoints of this node; a client keeps its endpoint for 60 s; the endpoint sees the node's address as the source
  endpoint 10.85.0.3:8080, pod shop/web-1 on node here
    egress  allowed: no policy selects the pod
    ingress allowed by shop/a
  endpoint 10.85.0.4:8080, pod shop/web-2 on node here
    egress  allowed: the other end is the node
    ingress denied: no rule of shop/a, shop/b allows it
  not used: 10.85.0.5:8080, pod shop/web-3 on node here: it is not ready

203.0.113.5:443/TCP: reached
  no Service: 203.0.113.5:443, no pod or node of this cluster

192.0.2.10:22/TCP: reached
  no Service: 192.0.2.10:22, node here itself
`

func TestWhy(t *testing.T) {
	var asked string
	p := serveKube(t, map[string]http.HandlerFunc{"/why": func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query().Encode()
		if r.URL.Query().Get("to") == "nothing" {
			http.Error(w, `destination "nothing": the name does not exist`, http.StatusBadRequest)
			return
		}
		_, _ = fmt.Fprint(w, answered)
	}})
	got, err := runCommand(t, p, "why", "-n", "shop", "pod/cart", "web")
	if err != nil || got != printed {
		t.Errorf("%v\n%s\nwant\n%s", err, got, printed)
	}
	if want := "from=pod%2Fcart&namespace=shop&to=web"; asked != want {
		t.Errorf("asked %s, want %s", asked, want)
	}
	// JSON has all that was answered.
	got, err = runCommand(t, p, "why", "-o", "json", "pod/cart", "web")
	var now, want any
	if jerr := json.Unmarshal([]byte(got), &now); err != nil || jerr != nil {
		t.Fatalf("%v, %v, %s", err, jerr, got)
	}
	if err := json.Unmarshal([]byte(answered), &want); err != nil {
		t.Fatal(err)
	}
	if a, b := fmt.Sprint(now), fmt.Sprint(want); a != b {
		t.Errorf("%s\nwant\n%s", a, b)
	}
	if _, err := runCommand(t, p, "why", "pod/cart", "nothing"); err == nil ||
		err.Error() != `why: destination "nothing": the name does not exist` {
		t.Errorf("%v", err)
	}
	if _, err := runCommand(t, place{root: t.TempDir(), state: t.TempDir()}, "why", "a", "b"); err == nil ||
		!strings.Contains(err.Error(), "the cluster process does not run") || !strings.Contains(err.Error(), "'coracle up --root ") {
		t.Errorf("without a cluster: %v", err)
	}
	if _, err := runCommand(t, p, "why", "pod/cart", "web", "-o", "xml"); err == nil || !strings.Contains(err.Error(), "table, json or yaml") {
		t.Errorf("-o xml: %v", err)
	}
}

// Shells complete pods, and for the destination Services too.
func TestCompleteWhy(t *testing.T) {
	client := fakeAPI(t, map[string]string{
		"/api/v1/namespaces/shop/pods":     `{"items": [{"metadata": {"name": "cart"}}]}`,
		"/api/v1/namespaces/shop/services": `{"items": [{"metadata": {"name": "web"}}]}`,
	}, nil)
	if got := fmt.Sprint(client.names(t.Context(), "shop", "pods", "pod/"),
		client.names(t.Context(), "shop", "services", "svc/")); got != "[pod/cart] [svc/web]" {
		t.Error(got)
	}
	if got := client.names(t.Context(), "none", "pods", "pod/"); len(got) != 0 {
		t.Error(got)
	}
}

// What the parts of the cluster process say is a line each.
func TestStatusOfParts(t *testing.T) {
	p := serveKube(t, map[string]http.HandlerFunc{"/healthz/parts": func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `[{"component": "service proxy", "healthy": true, "since": "2026-01-01T00:00:00Z", "message": "routes"},
			{"component": "DNS", "healthy": false, "since": "2026-01-01T00:00:00Z", "message": "address in use", "lastError": "address in use", "lastErrorAt": "2026-01-01T00:00:00Z"},
			{"component": "policies", "healthy": true, "since": "2026-01-01T00:00:00Z", "message": "in force", "lastError": "repaired", "lastErrorAt": "2026-01-02T00:00:00Z"}]`)
	}})
	all, err := partsHealth(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	local := func(day int) string {
		return time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC).Local().Format(time.DateTime)
	}
	for i, want := range []string{"routes (since " + local(1) + ")", "address in use (since " + local(1) + ")", "in force (since " +
		local(1) + "); last error, " + local(2) + ": repaired"} {
		if got := all[i].told(); got != want || all[i].Healthy == (i == 1) {
			t.Errorf("%q, want %q: %+v", got, want, all[i])
		}
	}
	var out bytes.Buffer
	tellParts(t.Context(), p, newSteps(&out))
	if !strings.HasSuffix(out.String(), "… DNS: address in use\n") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("up prints %q", out.String())
	}
}

// Regression: without the API server, status said nothing of the parts, which may tell why.
func TestStatusOfPartsWithoutAPIServer(t *testing.T) {
	p := serveKube(t, map[string]http.HandlerFunc{"/healthz/parts": func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `[{"component": "DNS", "healthy": false, "message": "address in use"}]`)
	}})
	gone := httptest.NewTLSServer(nil)
	gone.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // as after a runtime that hangs
	for _, tc := range []struct{ name, kubeconfig string }{{"no kubeconfig", ""}, {"no API server", kubeconfigFor(t, gone)}} {
		if tc.kubeconfig != "" {
			p.root = filepath.Dir(tc.kubeconfig)
		}
		all := look(ctx, p)
		if last := all[len(all)-1]; last.Component != "DNS" || last.Healthy || last.Message != "address in use" ||
			all[2].Component != "apiserver" || all[2].Healthy {
			t.Errorf("%s: %+v", tc.name, all)
		}
	}
	all := look(t.Context(), place{root: t.TempDir(), state: t.TempDir()})
	if last := all[len(all)-1]; last.Component != "cluster process" || last.Healthy ||
		!strings.HasPrefix(last.Message, "the cluster process does not run, or is of an earlier release: ") {
		t.Errorf("without a cluster process: %+v", all)
	}
}
