package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Regression: another control-plane node's --etcd-peer-port was taken for this machine's.
func TestPeersOfDoctor(t *testing.T) {
	const ready = `{"metadata": {"name": %q}, "status": {"conditions": [{"type": "Ready", "status": %q}],
		"addresses": [{"type": "InternalIP", "address": %q}], "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}}`
	answers := map[string]string{
		"/api/v1/nodes": `{"items": [` + fmt.Sprintf(ready, "one", "True", "192.0.2.1") + "," + fmt.Sprintf(ready, "two", "True", "192.0.2.2") + "," +
			fmt.Sprintf(ready, "agent", "True", "192.0.2.3") + "," + fmt.Sprintf(ready, "off", "Unknown", "192.0.2.4") + "," +
			fmt.Sprintf(ready, "name", "True", "example.com") + "," + fmt.Sprintf(ready, "zone", "True", "fe80::1%any text") + `]}`,
		"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes": `{"ports": [{"port": 7443}],
			"endpoints": [{"addresses": ["192.0.2.1"]}, {"addresses": ["192.0.2.2"]}]}`,
		"/coracle/members": `[{"name": "one", "url": "https://192.0.2.1:2380"}, {"name": "two", "url": "https://192.0.2.2:12380"},
			{"name": "off", "url": "https://192.0.2.4:2380"}, {"url": "https://192.0.2.5:2380"}]`,
	}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, answers[r.URL.Path])
	}))
	defer s.Close()
	p := place{root: t.TempDir()}
	if err := os.Rename(kubeconfigFor(t, s), p.kubeconfig()); err != nil {
		t.Fatal(err)
	}
	called := func() (all []string) {
		for _, peer := range peers(t.Context(), p, upOptions{Node: "one"}) {
			all = append(all, peer.Part+" of "+peer.Name+" at "+peer.At)
		}
		return all
	}
	const layers = "port for layers of images of "
	// Regression: with many nodes, what is called for layers took the place of API servers.
	want := []string{
		"kubelet of two at 192.0.2.2:10250", "kubelet of agent at 192.0.2.3:10250", layers + "two at 192.0.2.2:10266",
		layers + "agent at 192.0.2.3:10266",
	}
	if got := called(); !slices.Equal(got, want) {
		t.Errorf("with one control-plane node: %q, want %q", got, want)
	}
	etcd := filepath.Join(p.kubeRoot(), "etcd")
	if err := os.MkdirAll(etcd, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(etcd, "peers.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want = slices.Insert(want, 1, "API server of two at 192.0.2.2:7443", "member of etcd of two at 192.0.2.2:12380")
	if got := called(); !slices.Equal(got, want) {
		t.Errorf("with several: %q, want %q", got, want)
	}
}
