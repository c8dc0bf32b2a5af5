package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers each question with an address, until the test ends.
func nameServer(t *testing.T, asked chan<- string) (port int) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		packet := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(packet[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Additionals = true, nil
			if q.Type == dnsmessage.TypeA {
				asked <- q.Name.String()
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 5}, Body: &dnsmessage.AResource{A: [4]byte{10, 96, 0, 1}},
				}}
			}
			if wire, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(wire, from)
			}
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).Port
}

// status asks the Services that each pod needs at their addresses, and says which does not answer.
func TestServicesThatPodsNeed(t *testing.T) {
	services := map[string]string{} // addresses with ports, by name
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			return
		}
		host, port, err := net.SplitHostPort(services[strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")])
		if err != nil {
			_, _ = fmt.Fprint(w, `{"items": []}`)
			return
		}
		_, _ = fmt.Fprintf(w, `{"items": [{"spec": {"clusterIP": %q, "ports": [{"port": %s}]}}]}`, host, port)
	}))
	defer s.Close()
	client, err := openAPI(kubeconfigFor(t, s))
	if err != nil {
		t.Fatal(err)
	}
	defer client.http.CloseIdleConnections()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nothing := closed.Addr().String()
	_ = closed.Close()
	asked := make(chan string, 16)
	api, dns := strings.TrimPrefix(s.URL, "https://"), fmt.Sprintf("127.0.0.1:%d", nameServer(t, asked))
	p := place{root: t.TempDir(), state: t.TempDir()}
	if err := (upOptions{Port: 1, ClusterDomain: "boat.example"}).remember(p); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		services map[string]string
		want     string
	}{
		"all answer":   {map[string]string{"kubernetes": api, "kube-dns": dns}, "[apiserver for pods true dns true]"},
		"without DNS":  {map[string]string{"kubernetes": api}, "[apiserver for pods true]"},
		"headless DNS": {map[string]string{"kubernetes": api, "kube-dns": "None:53"}, "[apiserver for pods true]"},
		"no API":       {map[string]string{"kubernetes": nothing, "kube-dns": dns}, "[apiserver for pods false dns true]"},
		"a dead DNS":   {map[string]string{"kubernetes": api, "kube-dns": nothing}, "[apiserver for pods true dns false]"},
	} {
		services = tc.services
		var got []any
		for _, h := range forPods(t.Context(), client, p) {
			got = append(got, h.Component, h.Healthy)
			if !h.Healthy && !strings.Contains(h.Message, p.kubeLog()) {
				t.Errorf("%s: %s", name, h.Message)
			}
		}
		if fmt.Sprint(got) != tc.want {
			t.Errorf("%s: %v, not %s", name, got, tc.want)
		}
	}
	if name := <-asked; name != "kubernetes.default.svc.boat.example." {
		t.Errorf("the DNS was asked for %s", name)
	}
}
