package main

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// kubeconfigFor writes a kubeconfig whose user has no certificate of that server's making.
func kubeconfigFor(t *testing.T, s *httptest.Server) string {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	cert, key := clientPair(t)
	data, err := yaml.Marshal(map[string]any{
		"clusters": []any{map[string]any{"cluster": map[string]any{"server": s.URL, "certificate-authority-data": ca}}},
		"users":    []any{map[string]any{"user": map[string]any{"client-certificate-data": cert, "client-key-data": key}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// lately is when the kubelet was started that the tests wait for.
var lately = time.Date(2026, 1, 1, 12, 0, 0, 500, time.UTC)

func event(status, message string) string { return eventAt(lately, status, message) }

// eventAt is what the API server sends when a kubelet has said so at a time, in whole seconds.
func eventAt(at time.Time, status, message string) string {
	return fmt.Sprintf(`{"type": "MODIFIED", "object": {"status": {"conditions": [{"type": "Ready", "status": %q, "message": %q, "lastHeartbeatTime": %q}]}}}`+"\n",
		status, message, at.Format(time.RFC3339))
}

// A node that lacks only a network plugin is not waited for: the plugin may be applied next.
func TestAwaitNodeWithoutPlugin(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, event("False", "no range yet"), strings.Replace(event("False", "no CNI configuration"), `"type": "Ready"`,
			`"type": "Ready", "reason": "NetworkPluginNotReady"`, 1))
	}))
	defer s.Close()
	client, err := openAPI(kubeconfigFor(t, s))
	if err != nil {
		t.Fatal(err)
	}
	defer client.http.CloseIdleConnections()
	if waits, err := client.awaitNode(t.Context(), "one", lately); err != nil || waits != "no CNI configuration" {
		t.Errorf("%q, %v", waits, err)
	}
}

// A watch that ends before the node is Ready is begun again.
func TestAwaitNode(t *testing.T) {
	watches := 0
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("fieldSelector"); got != "metadata.name=one" {
			t.Errorf("the watch selects %q", got)
		}
		watches++
		if watches == 1 {
			// The first word is an earlier kubelet's.
			_, _ = fmt.Fprint(w, eventAt(lately.Add(-time.Minute), "True", ""), event("False", "no network"))
			return
		}
		_, _ = fmt.Fprint(w, event("True", ""))
	}))
	defer s.Close()
	client, err := openAPI(kubeconfigFor(t, s))
	if err != nil {
		t.Fatal(err)
	}
	defer client.http.CloseIdleConnections()
	if waits, err := client.awaitNode(t.Context(), "one", lately); err != nil || waits != "" {
		t.Errorf("%q, %v", waits, err)
	}
	if watches != 2 {
		t.Errorf("there were %d watches, want 2", watches)
	}
}

// Regression: the API server of a supervisor that had just been killed answered once more, and up
// failed when it was gone.
func TestAwaitNodeOfAnAPIServerThatEnds(t *testing.T) {
	for supervised, want := range map[bool]string{true: "", false: "connection reset"} {
		watches := 0
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/api/v1/nodes" {
				return
			}
			if watches++; watches > 1 {
				_, _ = fmt.Fprint(w, event("True", ""))
				return
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				err = errors.Join(conn.(*tls.Conn).NetConn().(*net.TCPConn).SetLinger(0), conn.(*tls.Conn).NetConn().Close())
			}
			if err != nil {
				t.Error(err)
			}
		}))
		defer s.Close()
		client, err := openAPI(kubeconfigFor(t, s))
		if err != nil {
			t.Fatal(err)
		}
		defer client.http.CloseIdleConnections()
		u := &upRun{place: place{root: t.TempDir(), state: t.TempDir()}, o: &upOptions{Node: "one"}, since: lately}
		if supervised {
			lock, err := hold(u.place.supervisor())
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
		}
		_, err = u.awaitOwnNode(t.Context(), client)
		if said := fmt.Sprint(err); supervised && err != nil || !supervised && (err == nil || !strings.Contains(said, want)) {
			t.Errorf("with a supervisor %t: %v", supervised, err)
		}
		if watches == 0 || supervised && watches != 2 {
			t.Errorf("with a supervisor %t there were %d watches", supervised, watches)
		}
	}
}

// The error tells why the node was not Ready.
func TestAwaitNodeGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, event("False", "no network"), event("False", "still none"))
		w.(http.Flusher).Flush()
		cancel()
	}))
	defer s.Close()
	client, err := openAPI(kubeconfigFor(t, s))
	if err != nil {
		t.Fatal(err)
	}
	defer client.http.CloseIdleConnections()
	if _, err := client.awaitNode(ctx, "one", lately); err == nil || !strings.HasPrefix(err.Error(), "node one is not Ready: ") {
		t.Errorf("the error is %v", err)
	}
}

func TestBadKubeconfig(t *testing.T) {
	for content, want := range map[string]string{
		"{":                             "kubeconfig:",
		"":                              "0 clusters and 0 users",
		"clusters: [{}]\nusers: [{}]":   "no CA certificate",
		"clusters: [{}, {}]\nusers: []": "2 clusters and 0 users",
	} {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openAPI(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %v, want one with %q", content, err, want)
		}
	}
}
