package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// webServer is a container that serves on a port of its pod.
func webServer(port int) *cri.ContainerConfig {
	c := shell("web", "")
	c.Image.Image = testRef("web")
	c.Command, c.Args = nil, []string{"-listen", fmt.Sprintf(":%d", port)}
	return c
}

// get fetches a page, waiting until the server is up.
func get(t testing.TB, url string) string {
	t.Helper()
	var body string
	eventually(t, url+" answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := client.Do(req)
		if err != nil {
			return false
		}
		defer r.Body.Close()
		raw, err := io.ReadAll(r.Body)
		body = string(raw)
		return err == nil
	})
	return body
}

// Containers of a pod share its loopback; pods reach each other and are reached from
// the host by the addresses that they are said to have.
func TestPodNetwork(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	n.pull("web")
	a, b := n.runPod(nil), n.runPod(nil)
	a.run(webServer(8080))
	side := a.run(shell("side", forever))
	other := b.run(shell("other", forever))

	ips := []string{a.status().GetNetwork().GetIp()}
	for _, ip := range a.status().GetNetwork().GetAdditionalIps() {
		ips = append(ips, ip.GetIp())
	}
	if len(ips) != 2 {
		t.Errorf("addresses %v, want one of each family", ips)
	}
	for _, ip := range ips {
		if _, err := netip.ParseAddr(ip); err != nil {
			t.Fatal(err)
		}
		url := "http://" + net.JoinHostPort(ip, "8080") + "/"
		if body := get(t, url); !strings.Contains(body, a.config.Hostname) {
			t.Errorf("from the host, %s: %q", url, body)
		}
		if out, code := other.exec("wget", "-q", "-O", "-", url); code != 0 || !strings.Contains(out, a.config.Hostname) {
			t.Errorf("from the other pod, %s: %q, exit code %d", url, out, code)
		}
	}
	if out, code := side.exec("wget", "-q", "-O", "-", "http://127.0.0.1:8080/"); code != 0 || !strings.Contains(out, a.config.Hostname) {
		t.Errorf("over the pod's loopback: %q, exit code %d", out, code)
	}
	a.remove()
	b.remove()
}

// An address is free again when its pod is gone.
func TestAddressesReturn(t *testing.T) {
	n := newNode(t, testkit.Options{})

	n.runPod(nil).remove()
	done := n.noLeaks()
	for range 20 {
		n.runPod(nil).remove()
	}
	done()
}

func TestHostNetwork(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("web")
	p := n.runPod(func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
		c.Hostname = ""
	})
	p.run(webServer(18080))
	get(t, "http://127.0.0.1:18080/")
	p.remove()
}

func TestHostPort(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("web")
	ports := func(c *cri.PodSandboxConfig) {
		c.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 8080, HostPort: 18081}}
	}
	p := n.runPod(ports)
	p.run(webServer(8080))
	if body := get(t, "http://127.0.0.1:18081/"); !strings.Contains(body, p.config.Hostname) {
		t.Errorf("over the host port: %q", body)
	}
	c := n.podConfig()
	ports(c)
	if _, err := n.RunPodSandbox(n.ctx(), &cri.RunPodSandboxRequest{Config: c}); err == nil {
		t.Error("two pods on one host port")
	}
	p.remove()
	p = n.runPod(ports) // free again
	p.remove()
}

// cniConf uses the reference plugins as an operator would.
func cniConf(t *testing.T, ipam string) string {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "10-test.conflist"), fmt.Sprintf(`{
  "cniVersion": "1.0.0", "name": "test", "plugins": [
    {"type": "bridge", "bridge": "cnitest0", "isGateway": true,
     "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.199.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}]}`, ipam))
	return dir
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCNI(t *testing.T) {
	ipam := t.TempDir()
	n := newNode(t, testkit.Options{CNIConfDir: cniConf(t, ipam)})
	// The plugins leave these on purpose. Cleanups run before the daemon's leak check.
	t.Cleanup(func() { removeLink(t, "cnitest0"); removeTable(t, "cni_hostport") })
	n.pull("web")
	p := n.runPod(func(c *cri.PodSandboxConfig) {
		c.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 8080, HostPort: 18082}}
	})
	p.run(webServer(8080))
	ip := p.status().GetNetwork().GetIp()
	if !strings.HasPrefix(ip, "10.199.0.") {
		t.Errorf("address %q is not the plugin's", ip)
	}
	get(t, "http://"+ip+":8080/")
	p.remove()
	leases, err := filepath.Glob(filepath.Join(ipam, "test", "10.*"))
	if err != nil || len(leases) != 0 {
		t.Errorf("addresses still leased: %v, %v", leases, err)
	}
}

// A broken configuration: pods fail with the cause, Status says so, and once it is
// fixed pods start, without a restart.
func TestBadCNI(t *testing.T) {
	ipam := t.TempDir()
	good := cniConf(t, ipam)
	for name, content := range map[string]string{
		"not JSON":       "{",
		"unknown plugin": `{"cniVersion": "1.0.0", "name": "test", "plugins": [{"type": "no-such-plugin"}]}`,
		"no plugins":     `{"cniVersion": "1.0.0", "name": "test", "plugins": []}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "10-test.conflist")
			writeFile(t, file, content)
			n := newNode(t, testkit.Options{CNIConfDir: dir})
			t.Cleanup(func() { removeLink(t, "cnitest0"); removeTable(t, "cni_hostport") })
			fails := func() {
				_, err := n.RunPodSandbox(n.ctx(), &cri.RunPodSandboxRequest{Config: n.podConfig()})
				wantCode(t, "RunPodSandbox", err, "FailedPrecondition")
			}
			fails() // what is opened once for all is no leak
			check := n.noLeaks()
			fails()
			check()
			if name != "unknown plugin" {
				if ready, _ := networkReady(t, n); ready {
					t.Error("Status says that the network is ready")
				}
			}
			raw, err := os.ReadFile(filepath.Join(good, "10-test.conflist"))
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, file+".new", string(raw))
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the network is ready", func() bool { ready, _ := networkReady(t, n); return ready })
			n.runPod(nil).remove()
		})
	}
}

func networkReady(t *testing.T, n *node) (bool, string) {
	t.Helper()
	r, err := n.Status(n.ctx(), &cri.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.GetStatus().GetConditions() {
		if c.GetType() == "NetworkReady" {
			return c.GetStatus(), c.GetMessage()
		}
	}
	t.Fatal("Status has no NetworkReady")
	return false, ""
}
