//go:build nodes

package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

// TestNetworkPlugin leaves all pods to others: the reference plugins connect those of a node by a
// bridge, and flannel connects the nodes by VXLAN.
func TestNetworkPlugin(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all := cluster(t, 2)
	plugins := fmt.Sprintf("cni_bin_dirs = [%q]\n", bin("tools", "cni"))
	appendTo(t, filepath.Join(all[0].dir, "coracled.toml"), plugins) // section network is the last
	up(t, all, "--pod-network", "cni")                               // which does not wait for a plugin
	startRegistry(t)
	x := across{all: all, kube: client(t, all[0])}
	const missing = "the cluster leaves pods to a network plugin: no CNI configuration in "
	for _, m := range all {
		n, err := x.kube.CoreV1().Nodes().Get(ctx, m.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ready := condition(n); ready.Status != corev1.ConditionFalse || ready.Reason != "NetworkPluginNotReady" ||
			!strings.Contains(ready.Message, missing) {
			t.Errorf("without a plugin, node %s is %+v", m.Name, ready)
		}
	}
	if out, said, err := all[0].Run("status"); err == nil || strings.Count(out, missing) < len(all) {
		t.Errorf("status without a plugin: %v\n%s%s", err, out, said)
	}
	for _, m := range all {
		x.pods = append(x.pods, labelled(ctx, t, x.kube, "web-"+m.Name, m.Name))
	}
	for _, p := range x.pods {
		testkit.Eventually(ctx, t, p.Name+" has an Event", func() (bool, error) {
			events, err := x.kube.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + p.Name})
			if err != nil {
				return false, err
			}
			var said []string
			for _, e := range events.Items {
				said = append(said, e.Reason+": "+e.Message)
			}
			text := strings.Join(said, "\n")
			return strings.Contains(text, "NetworkNotReady: ") && strings.Contains(text, missing), errors.New(text)
		})
	}

	for _, m := range all {
		m.runFlannel(t)
	}
	if err := os.Mkdir(filepath.Join(all[0].dir, "cni"), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	appendTo(t, filepath.Join(all[0].dir, "cni", "10-bridge.conflist"), fmt.Sprintf(`{
  "cniVersion": "1.0.0", "name": "plugged", "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true, "mtu": 1450, "capabilities": {"ipRanges": true},
    "ipam": {"type": "host-local", "dataDir": %q, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}]}`,
		filepath.Join(all[0].dir, "ipam")))
	for i, p := range x.pods {
		x.pods[i] = awaitPod(ctx, t, x.kube, p.Name)
		m := all[i]
		n, err := x.kube.CoreV1().Nodes().Get(ctx, m.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ready := condition(n); ready.Status != corev1.ConditionTrue {
			t.Errorf("with a plugin, node %s is %+v", m.Name, ready)
		}
		if len(x.pods[i].Status.PodIPs) != 2 {
			t.Fatalf("pod %s has %v", p.Name, x.pods[i].Status.PodIPs)
		}
		for k, ip := range x.pods[i].Status.PodIPs {
			if _, network, _ := net.ParseCIDR(n.Spec.PodCIDRs[k]); !network.Contains(net.ParseIP(ip.IP)) {
				t.Errorf("pod %s has %s, which is not of %s", p.Name, ip.IP, network)
			}
		}
		m.hasNoPaths(t)
	}
	x.awaitFlannel(ctx, t)
	x.reachEachOther(t)
	x.byName(ctx, t)
}

func condition(n *corev1.Node) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func appendTo(t *testing.T, file, text string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// runFlannel runs flannel's daemon in a node's network until the test ends. It takes the node's
// ranges from spec.podCIDRs.
func (m *machine) runFlannel(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	settings, err := json.Marshal(map[string]any{
		"Network": "10.85.0.0/16", "IPv6Network": "fd85:c0ac:1e00::/48", "EnableIPv6": true, "EnableNFTables": true,
		"Backend": map[string]any{"Type": "vxlan"},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "net-conf.json")
	if err := os.WriteFile(file, settings, 0o600); err != nil {
		t.Fatal(err)
	}
	link := "eth0"
	argv := []string{bin("tools", "flanneld")}
	if m.n == 1 {
		link = bridge
	} else {
		argv = append([]string{"nsenter", fmt.Sprintf("--net=%s/state/nodes/ns/%d/net", m.dir, m.n)}, argv...)
	}
	argv = append(argv, "-kube-subnet-mgr", "-kubeconfig-file", filepath.Join(m.dir, "root", "kubeconfig"), "-net-config-path", file,
		"-subnet-file", filepath.Join(dir, "subnet.env"), "-iface", link, "-ip-masq=false")
	daemon := exec.Command(argv[0], argv[1:]...)
	daemon.Env = append(os.Environ(), "NODE_NAME="+m.Name)
	log := filepath.Join(dir, "log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	daemon.Stdout, daemon.Stderr = out, out
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
		if _, err := out.Seek(0, io.SeekStart); err == nil && t.Failed() {
			said, _ := os.ReadFile(log)
			t.Logf("flannel of %s:\n%s", m.Name, said)
		}
	})
}

// awaitFlannel waits until each node has flannel's routes to the other one.
func (x *across) awaitFlannel(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, m := range x.all {
		testkit.Eventually(ctx, t, "flannel's routes of "+m.Name, func() (bool, error) {
			var links []string
			err := m.inNetwork(func(h *netlink.Handle) error {
				for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
					routes, err := h.RouteList(nil, family)
					if err != nil {
						return err
					}
					for _, r := range routes {
						l, err := h.LinkByIndex(r.LinkIndex)
						if err == nil && strings.HasPrefix(l.Attrs().Name, "flannel") && r.Gw != nil {
							links = append(links, l.Attrs().Name)
						}
					}
				}
				return nil
			})
			return len(links) == 2, errors.Join(err, fmt.Errorf("routes by %v", links))
		})
	}
}

// hasNoPaths checks that a node has neither routes nor tunnels of the cluster's own, nor pods on
// coracled's links.
func (m *machine) hasNoPaths(t *testing.T) {
	t.Helper()
	err := m.inNetwork(func(h *netlink.Handle) error {
		routes, err := h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: 86}, netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return err
		}
		links, err := h.LinkList()
		if err != nil {
			return err
		}
		for _, r := range routes {
			t.Errorf("node %s has the route %v", m.Name, r)
		}
		for _, l := range links {
			if name := l.Attrs().Name; strings.HasPrefix(name, "coracle") || strings.HasPrefix(name, "cor") && l.Type() == "veth" {
				t.Errorf("node %s has the link %s", m.Name, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// byName reaches a Service on the other node by its name, which the cluster's DNS answers.
func (x *across) byName(ctx context.Context, t *testing.T) {
	t.Helper()
	for i, to := range x.pods {
		name := "for-" + to.Name
		_, err := x.kube.CoreV1().Services("default").Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{
				Selector: to.Labels, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		from := x.pods[1-i]
		testkit.Eventually(ctx, t, from.Name+" reaches "+name, func() (bool, error) {
			page, err := x.get(t, from, name, 5)
			return err == nil && strings.Contains(page, "in pod "+to.Name), fmt.Errorf("%s, %w", page, err)
		})
	}
}
