package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The network of the node, with a neighbour, and addresses for Services. testnet.Here makes another
// one.
const (
	nodeLAN, neighbourLAN   = "198.51.100.1/24", "198.51.100.9/24"
	nodeLAN6, neighbourLAN6 = "2001:db8:51::1/64", "2001:db8:51::9/64"
	balancers               = "198.51.100.100-198.51.100.110"
)

// newNeighbour connects this machine with another one, a network namespace.
func newNeighbour() (netns.NsHandle, error) {
	type made struct {
		ns  netns.NsHandle
		err error
	}
	done := make(chan made)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends
		ns, err := netns.New()
		done <- made{ns, err}
	}()
	m := <-done
	if m.err != nil {
		return 0, fmt.Errorf("make a neighbour: %w", m.err)
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0"}, PeerName: "lan0", PeerNamespace: netlink.NsFd(int(m.ns))}
	if err := netlink.LinkAdd(veth); err != nil {
		return 0, fmt.Errorf("connect a neighbour: %w", err)
	}
	err := onNeighbour(m.ns, func() error { return furnishLAN(neighbourLAN, neighbourLAN6) })
	return m.ns, errors.Join(err, furnishLAN(nodeLAN, nodeLAN6))
}

func furnishLAN(addresses ...string) error {
	l, err := netlink.LinkByName("lan0")
	if err != nil {
		return err
	}
	for _, text := range addresses {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		addr.Flags = 2 // IFA_F_NODAD
		if err := netlink.AddrAdd(l, addr); err != nil {
			return fmt.Errorf("address %s: %w", text, err)
		}
	}
	return netlink.LinkSetUp(l)
}

// onNeighbour calls f in a network namespace.
func onNeighbour(ns netns.NsHandle, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends
		err := netns.Set(ns)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// nothingAnnounced says what is left of load balancers' addresses on this machine.
func nothingAnnounced() error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		proxied, err := netlink.NeighProxyList(0, family)
		if err != nil || len(proxied) > 0 {
			return fmt.Errorf("down has left proxied neighbours: %v, %v", proxied, err)
		}
	}
	if l, err := net.InterfaceByName("coracle-lb6443"); err == nil {
		return fmt.Errorf("down has left the interface %s", l.Name)
	}
	for name, want := range map[string]string{"ipv4/neigh/lan0/proxy_delay": "80", "ipv6/conf/all/proxy_ndp": "0"} {
		data, err := os.ReadFile("/proc/sys/net/" + name)
		if got := strings.TrimSpace(string(data)); err != nil || got != want {
			return fmt.Errorf("down has left the sysctl %s at %q, want %s: %v", name, got, want, err)
		}
	}
	return nil
}

// fetch is what curl does on the neighbour.
func fetch(ctx context.Context, address string) (status string, err error) {
	err = onNeighbour(boat.neighbour, func() error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
		if err == nil {
			err = request.Write(conn)
		}
		if err != nil {
			return err
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), request)
		if err != nil {
			return err
		}
		status = response.Status
		return response.Body.Close()
	})
	return status, err
}

// A Service of type LoadBalancer gets an address of the pool, and a machine on the node's network
// reaches its pod there.
func TestLoadBalancersAreReachedFromTheNetwork(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	service, err := boat.kube.CoreV1().Services(ns).Create(ctx,
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := runPod(ctx, t, ns, "web", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "web"}
		p.Spec.Containers[0].Command = []string{"httpd", "-f", "-p", "8080", "-h", "/etc"}
	})
	awaitPod(ctx, t, ns, pod, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	address := ""
	eventually(ctx, t, "the Service has an address", func() (bool, error) {
		service, err = boat.kube.CoreV1().Services(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil || len(service.Status.LoadBalancer.Ingress) != 1 {
			return false, err
		}
		address = service.Status.LoadBalancer.Ingress[0].IP
		return strings.HasPrefix(address, "198.51.100.10"), nil
	})
	eventually(ctx, t, "the neighbour is answered", func() (bool, error) {
		status, err := fetch(ctx, net.JoinHostPort(address, "80"))
		return status == "404 Not Found" || status == "200 OK", errors.Join(err, errors.New(status))
	})
	// This one is still announced when the cluster is taken down, which has to remove that.
	stays := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "stays"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	if _, err := boat.kube.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, stays, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, ns := range map[string]string{"web": ns, "stays": metav1.NamespaceDefault} {
		for _, want := range []string{"AddressAssigned", "AddressAnnounced"} {
			eventually(ctx, t, fmt.Sprintf("an Event of %s says %s", name, want), func() (bool, error) {
				of := "involvedObject.kind=Service,involvedObject.name=" + name + ",reason=" + want
				events, err := boat.kube.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: of})
				return err == nil && len(events.Items) > 0, err
			})
		}
	}
}
