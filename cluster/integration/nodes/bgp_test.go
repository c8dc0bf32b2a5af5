//go:build bgp

package nodes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coracle-project/coracle/cluster/integration/router"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// bird is the configuration of a router that takes all nodes of the cluster's AS.
const bird = `
router id 10.84.0.200;
log stderr all;
protocol device {}
protocol kernel { ipv4 { export all; }; }
protocol kernel { ipv6 { export all; }; }
protocol bgp nodes {
  local 10.84.0.200 as 64500;
  neighbor range 10.84.0.0/24 as 64512;
  ipv4 { import all; export none; };
  ipv6 { import all; export none; };
}`

// TestBGP: the nodes of a cluster announce their pods to a router, and the address of a Service
// with the policy Local follows its endpoint.
func TestBGP(t *testing.T) {
	all := cluster(t, 2)
	one := all[0]
	one.Refused(t, "without --bgp-as", "up", "--bgp-peer", "10.84.0.200 as=64500")
	one.Refused(t, "as is missing", "up", "--bgp-as", "64512", "--bgp-peer", "10.84.0.200")
	up(t, all, "--bgp-as", "64512", "--bgp-peer", "10.84.0.200 as=64500", "--load-balancer-cidr", "203.0.113.0/28")
	if out, _, err := one.Run("status"); err == nil || !strings.Contains(out, "BGP peer 10.84.0.200") {
		t.Errorf("status without a router: %v\n%s", err, out)
	}

	space := testnet.NewSpace(t, "router")
	monitor, kernel := router.Start(t, space, "ip", "monitor", "route")
	wire(t, space, monitor.Process.Pid)
	config := filepath.Join(t.TempDir(), "bird.conf")
	if err := os.WriteFile(config, []byte(bird), 0o600); err != nil {
		t.Fatal(err)
	}
	router.Start(t, space, "bird", "-f", "-c", config, "-s", filepath.Join(filepath.Dir(config), "bird.ctl"))

	kube := client(t, one)
	want := map[string]bool{}
	for _, m := range all {
		node, err := kube.CoreV1().Nodes().Get(t.Context(), m.Name, metav1.GetOptions{})
		if err != nil || len(node.Spec.PodCIDRs) != 2 {
			t.Fatalf("node %s: %+v, %v", m.Name, node.Spec, err)
		}
		want[node.Spec.PodCIDRs[0]+" via "+address4(m)] = true
		want[node.Spec.PodCIDRs[1]+" via "+strings.Replace(address4(m), "10.84.0.", "fd84:c0ac:1e00::", 1)] = true
	}
	for len(want) > 0 {
		line := kernel.Await(t, " via ", "proto bird")
		for route := range want {
			if strings.HasPrefix(line, route+" ") {
				delete(want, route)
			}
		}
	}
	one.Must(t, "status")

	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
		Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}
	if _, err := kube.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	slices := kube.DiscoveryV1().EndpointSlices("default")
	endpoints := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.85.0.200"}}},
		Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
	}
	if _, err := slices.Create(t.Context(), endpoints, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		endpoints.Endpoints[0].NodeName = &m.Name
		if _, err := slices.Update(t.Context(), endpoints, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		kernel.Await(t, "203.0.113.", " via "+address4(m)+" ", "proto bird")
	}
	if err := slices.Delete(t.Context(), "web-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kernel.Await(t, "Deleted 203.0.113.")
	node, err := kube.CoreV1().Nodes().Get(t.Context(), one.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	one.Must(t, "down")
	ended := time.Now()
	for _, network := range node.Spec.PodCIDRs {
		want["Deleted "+network] = true
	}
	for len(want) > 0 {
		line := kernel.Await(t, "Deleted ")
		for gone := range want {
			if strings.HasPrefix(line, gone+" ") {
				delete(want, gone)
			}
		}
	}
	if late := time.Since(ended); late > 15*time.Second {
		t.Errorf("the routes have left %s after down: when the router gave the node up after 30 s, and not by its own words", late)
	}
}

func address4(m *machine) string { return fmt.Sprintf("10.84.0.%d", m.n) }

// wire connects a space, in which a process runs, with the network of the nodes.
func wire(t *testing.T, space *testnet.Space, process int) {
	t.Helper()
	for _, args := range []string{
		fmt.Sprintf("link add name to-router type veth peer name eth0 netns %d", process), "link set to-router master nodes6443 up",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	space.Run("ip addr add 10.84.0.200/24 dev eth0")
	space.Run("ip addr add fd84:c0ac:1e00::200/64 dev eth0 nodad")
	space.Run("ip link set eth0 up")
}
