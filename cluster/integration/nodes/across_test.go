//go:build nodes

package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

// TestAcrossNodes is what has to hold between nodes, on one cluster of three.
func TestAcrossNodes(t *testing.T) {
	all := cluster(t, 3)
	up(t, all)
	startRegistry(t)
	x := across{all: all, kube: client(t, all[0])}
	for _, m := range all {
		p := labelled(t.Context(), t, x.kube, "web-"+m.Name, m.Name)
		x.pods = append(x.pods, awaitPod(t.Context(), t, x.kube, p.Name))
	}
	t.Run("direct routes", x.reachEachOther)
	t.Run("VXLAN", x.throughVXLAN)
	t.Run("services", x.services)
	t.Run("load balancers", x.balancers)
	t.Run("policies", x.policies)
	t.Run("new certificates", x.rotate)
	t.Run("a link with delay", x.delay)
	t.Run("a lossy link", x.loss)
	t.Run("a node that is cut off", x.cutOff)
	t.Run("load balancers after that", func(t *testing.T) { x.balanced(t, 8099, 8100) })
}

// across is a cluster, with a pod on each node.
type across struct {
	all  []*machine
	kube kubernetes.Interface
	pods []*corev1.Pod
}

func labelled(ctx context.Context, t *testing.T, kube kubernetes.Interface, name, node string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: image}},
		},
	}
	p, err := kube.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// get has a pod get a page, and returns it.
func (x *across) get(t *testing.T, from *corev1.Pod, host string, seconds int) (string, error) {
	t.Helper()
	out, said, err := x.all[0].kubectl("exec", from.Name, "--", "timeout", fmt.Sprint(seconds), "wget", "-q", "-O", "-", "http://"+host)
	if err != nil {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return out, err
}

// sees says whether a pod's log has a request from an address.
func (x *across) sees(ctx context.Context, t *testing.T, pod *corev1.Pod, address string) {
	t.Helper()
	testkit.Eventually(ctx, t, fmt.Sprintf("pod %s sees %s", pod.Name, address), func() (bool, error) {
		log, said, err := x.all[0].kubectl("logs", pod.Name)
		return strings.Contains(log, "GET / from "+net.JoinHostPort(address, "")), fmt.Errorf("its log: %s%s %w", log, said, err)
	})
}

// reachEachOther has each pod reach each other one in both families, with its own address.
func (x *across) reachEachOther(t *testing.T) {
	for _, from := range x.pods {
		for _, to := range x.pods {
			if from == to {
				continue
			}
			for i, ip := range to.Status.PodIPs {
				page, err := x.get(t, from, net.JoinHostPort(ip.IP, "8080"), 10)
				if err != nil || !strings.Contains(page, "in pod "+to.Name) {
					t.Errorf("pod %s reads from %s at %s: %s, %v", from.Name, to.Name, ip.IP, page, err)
				}
				x.sees(t.Context(), t, to, from.Status.PodIPs[i].IP)
			}
		}
	}
}

// throughVXLAN takes the second node off the others' link: its addresses are in no network with
// theirs then. The overlay follows while pods speak, and back.
func (x *across) throughVXLAN(t *testing.T) {
	two := x.all[1]
	readdress := func(alone bool) {
		t.Helper()
		for _, m := range x.all {
			if err := m.readdress(two, alone); err != nil {
				t.Fatalf("%s: %v", m.Name, err)
			}
		}
	}
	paths := func(want string) {
		t.Helper()
		testkit.Eventually(t.Context(), t, "paths are "+want, func() (bool, error) {
			out, said, err := two.Run("status")
			return strings.Contains(out, want), fmt.Errorf("status: %s%s %w", out, said, err)
		})
	}
	readdress(true)
	paths("0 by direct routes, 2 through VXLAN")
	x.reachEachOther(t)
	x.blocked(t)
	readdress(false)
	paths("2 by direct routes, 0 through VXLAN")
	x.reachEachOther(t)
}

// blocked has the second node's firewall drop ports that others need: doctor names them on both
// sides, with the direction.
func (x *across) blocked(t *testing.T) {
	one, two := x.all[0], x.all[1]
	doctor := func(m *machine, want bool, words ...string) {
		t.Helper()
		out, _, _ := m.Run("doctor") // this machine may have other faults
		for _, w := range words {
			if strings.Contains(out, w) != want {
				t.Errorf("%s: doctor says %q: %t, want %t\n%s", m.Name, w, !want, want, out)
			}
		}
	}
	const tunnel, kubelet = "UDP port 8472 from this machine to the machine 10.84.0.", "a firewall drops TCP port 10250 from this machine"
	const arriving = "drops UDP port 8472 from other machines"
	doctor(one, false, tunnel, kubelet)
	doctor(two, false, tunnel, arriving)
	two.nft(t, "table inet mine { chain input { type filter hook input priority 0; udp dport 8472 drop; tcp dport 10250 drop; }; }")
	doctor(one, true, tunnel+"2", kubelet, "node one-2")
	doctor(two, true, tunnel+"1", arriving, "drops TCP port 10250 from other machines")
	two.nft(t, "delete table inet mine")
	x.reachEachOther(t)
}

// nft changes the rules of a further node.
func (m *machine) nft(t *testing.T, rules string) {
	t.Helper()
	cmd := exec.Command("nsenter", fmt.Sprintf("--net=%s/state/nodes/ns/%d/net", m.dir, m.n), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("nft on node %s: %v: %s", m.Name, err, said)
	}
}

// readdress gives a node's addresses to it alone, or as in the network of all, and routes by the
// first node as they are needed then. It acts on this machine's side of that.
func (m *machine) readdress(two *machine, alone bool) error {
	return m.inNetwork(func(h *netlink.Handle) error {
		name := "eth0"
		if m.n == 1 {
			name = bridge
		}
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		for _, text := range []string{"10.84.0.%d/%d", "fd84:c0ac:1e00::%d/%d"} {
			whole, bits := 24, 32
			if strings.Contains(text, ":") {
				whole, bits = 64, 128
			}
			parse := func(n, size int) *net.IPNet {
				ip, network, err := net.ParseCIDR(fmt.Sprintf(text, n, size))
				if err != nil {
					panic(err) // it is a constant
				}
				return &net.IPNet{IP: ip, Mask: network.Mask}
			}
			if m != two {
				// A route with a gateway is no direct way: the address of the node itself.
				host := parse(two.n, bits)
				route := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: host, Gw: host.IP, Flags: int(netlink.FLAG_ONLINK)}
				if alone {
					err = h.RouteReplace(route)
				} else {
					err = h.RouteDel(route)
				}
				if err != nil {
					return fmt.Errorf("route to node 2: %w", err)
				}
				continue
			}
			before, after := whole, bits
			if !alone {
				before, after = bits, whole
			}
			if err := h.AddrDel(l, &netlink.Addr{IPNet: parse(m.n, before)}); err != nil {
				return fmt.Errorf("take address: %w", err)
			}
			if err := h.AddrAdd(l, &netlink.Addr{IPNet: parse(m.n, after), Flags: 0x2}); err != nil { // IFA_F_NODAD
				return fmt.Errorf("give address: %w", err)
			}
			all := &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
			gateway := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: all, Gw: parse(1, bits).IP, Flags: int(netlink.FLAG_ONLINK)}
			if err := h.RouteReplace(gateway); err != nil {
				return fmt.Errorf("default route: %w", err)
			}
		}
		return nil
	})
}

// inNetwork calls f with a handle of the node's network namespace.
func (m *machine) inNetwork(f func(*netlink.Handle) error) error {
	ns, err := netns.Get()
	if m.n > 1 {
		_ = ns.Close()
		ns, err = netns.GetFromPath(fmt.Sprintf("%s/state/nodes/ns/%d/net", m.dir, m.n))
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	return f(h)
}

// services has one endpoint on the third node, and clients on all nodes and outside of the pods'
// network.
func (x *across) services(t *testing.T) {
	ctx := t.Context()
	endpoint := x.pods[2]
	create := func(name string, port int32, change func(*corev1.ServiceSpec)) *corev1.Service {
		t.Helper()
		both := corev1.IPFamilyPolicyPreferDualStack
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: endpoint.Labels, IPFamilyPolicy: &both,
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: port}},
		}}
		change(&s.Spec)
		s, err := x.kube.CoreV1().Services("default").Create(ctx, s, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	usual := create("usual", 30080, func(*corev1.ServiceSpec) {})
	local := create("local", 30081, func(s *corev1.ServiceSpec) {
		s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		inside := corev1.ServiceInternalTrafficPolicyLocal
		s.InternalTrafficPolicy = &inside
	})
	reached := func(what string, want bool, ask func() (string, error)) {
		t.Helper()
		testkit.Eventually(ctx, t, fmt.Sprintf("%s: reached is %t", what, want), func() (bool, error) {
			page, err := ask()
			if !want {
				return err != nil, fmt.Errorf("it answers: %s", page)
			}
			return err == nil && strings.Contains(page, "in pod "+endpoint.Name), fmt.Errorf("%s, %w", page, err)
		})
	}
	for _, from := range x.pods {
		inside := func(s *corev1.Service) func() (string, error) {
			return func() (string, error) { return x.get(t, from, s.Spec.ClusterIP, 2) }
		}
		reached("cluster address from "+from.Spec.NodeName, true, inside(usual))
		reached("local cluster address from "+from.Spec.NodeName, from == endpoint, inside(local))
	}
	x.sees(ctx, t, endpoint, x.pods[1].Status.PodIP) // a pod of another node, through a Service
	outside := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, m := range x.all[1:] {
		for _, address := range []string{"10.84.0.%d", "fd84:c0ac:1e00::%d"} {
			if strings.Contains(address, ":") && len(usual.Spec.ClusterIPs) == 1 {
				continue // Services have one family, and so have their node ports
			}
			node := netip.MustParseAddr(fmt.Sprintf(address, m.n))
			at := func(port uint16) func() (string, error) {
				return func() (string, error) {
					resp, err := outside.Get("http://" + netip.AddrPortFrom(node, port).String())
					if err != nil {
						return "", err
					}
					defer resp.Body.Close()
					var page strings.Builder
					err = resp.Write(&page)
					return page.String(), err
				}
			}
			reached(fmt.Sprintf("node port at %s", node), true, at(30080))
			reached(fmt.Sprintf("local node port at %s", node), m.Name == endpoint.Spec.NodeName, at(30081))
		}
	}
	x.sees(ctx, t, endpoint, "10.84.0.1") // by the local node port: the client's own
}

// balancers have the addresses of all nodes, but no port of a process on one of them.
func (x *across) balancers(t *testing.T) {
	ctx := t.Context()
	endpoint, two := x.pods[2], x.all[1]
	taken := two.listen(t, "10.84.0.2:8098")
	defer taken.Close()
	create := func(name string, port int32, address string) {
		t.Helper()
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: endpoint.Labels, LoadBalancerIP: address,
			Ports: []corev1.ServicePort{{Port: port, TargetPort: intstr.FromInt32(8080)}},
		}}
		if _, err := x.kube.CoreV1().Services("default").Create(ctx, s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("balanced", 8099, "")
	create("hijacker", 8098, "10.84.0.2")
	x.balanced(t, 8099)
	another := []byte(`[{"op": "add", "path": "/spec/ports/0/name", "value": "one"},
		{"op": "add", "path": "/spec/ports/-", "value": {"name": "two", "port": 8100, "targetPort": 8080}}]`)
	if _, err := x.kube.CoreV1().Services("default").Patch(ctx, "balanced", types.JSONPatchType, another, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	x.balanced(t, 8099, 8100)
	outside := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	testkit.Eventually(ctx, t, "the second node's address leads to the pod", func() (bool, error) {
		resp, err := outside.Get("http://10.84.0.2:8099")
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		return strings.Contains(string(page), "in pod "+endpoint.Name), fmt.Errorf("%s %w", page, err)
	})
	testkit.Eventually(ctx, t, "an Event says that the port is used", func() (bool, error) {
		events, err := x.kube.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=hijacker"})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "PortConflict" && strings.Contains(e.Message, "8098/TCP of 10.84.0.2 is used by a process of the node")
		}), fmt.Errorf("%d events", len(events.Items))
	})
	s, err := x.kube.CoreV1().Services("default").Get(ctx, "hijacker", metav1.GetOptions{})
	if err != nil || len(s.Status.LoadBalancer.Ingress) > 0 {
		t.Errorf("the port of a process of another node is given to a Service: %v, %v", s.Status.LoadBalancer, err)
	}
}

// balanced waits until the load balancer has these ports at the addresses of all nodes.
func (x *across) balanced(t *testing.T, ports ...int32) {
	t.Helper()
	testkit.Eventually(t.Context(), t, "the Service has the nodes' addresses", func() (bool, error) {
		s, err := x.kube.CoreV1().Services("default").Get(t.Context(), "balanced", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		var addresses []string
		for _, ingress := range s.Status.LoadBalancer.Ingress {
			var has []int32
			for _, p := range ingress.Ports {
				has = append(has, p.Port)
			}
			if slices.Equal(has, ports) {
				addresses = append(addresses, ingress.IP)
			}
		}
		return slices.Equal(addresses, []string{"10.84.0.1", "10.84.0.2", "10.84.0.3"}), fmt.Errorf("it has %v", s.Status.LoadBalancer)
	})
}

// listen listens in the node's network namespace.
func (m *machine) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	its, err := netns.GetFromPath(fmt.Sprintf("%s/state/nodes/ns/%d/net", m.dir, m.n))
	if err != nil {
		t.Fatal(err)
	}
	defer its.Close()
	if err := netns.Set(its); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err := errors.Join(err, netns.Set(own)); err != nil {
		t.Fatal(err)
	}
	return l
}

// policies lets one pod in, by its label; the others come from other nodes, too.
func (x *across) policies(t *testing.T) {
	ctx := t.Context()
	guarded, friend, other := x.pods[2], x.pods[0], x.pods[1]
	policies := x.kube.NetworkingV1().NetworkPolicies("default")
	_, err := policies.Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "friends"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: guarded.Labels},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: &metav1.LabelSelector{MatchLabels: friend.Labels}},
			}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	allowed := func(from *corev1.Pod, want bool) {
		t.Helper()
		for _, ip := range guarded.Status.PodIPs {
			testkit.Eventually(ctx, t, fmt.Sprintf("pod %s is let in at %s: %t", from.Name, ip.IP, want), func() (bool, error) {
				page, err := x.get(t, from, net.JoinHostPort(ip.IP, "8080"), 2)
				return (err == nil) == want, fmt.Errorf("%s, %w", page, err)
			})
		}
	}
	allowed(other, false)
	allowed(friend, true)
	if err := policies.Delete(ctx, "friends", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	allowed(other, true)
}

// delay has the way to a node take longer, and the node stays Ready.
func (x *across) delay(t *testing.T) {
	heal := delayed(t, x.all[2], 150*time.Millisecond)
	began := time.Now()
	page, err := x.get(t, x.pods[1], net.JoinHostPort(x.pods[2].Status.PodIP, "8080"), 20)
	if err != nil || !strings.Contains(page, "in pod "+x.pods[2].Name) {
		t.Errorf("with delay: %s, %v", page, err)
	}
	if took := time.Since(began); took < 600*time.Millisecond { // a handshake, and a request
		t.Errorf("with delay, a request takes %v", took)
	}
	x.all[2].Must(t, "status")
	heal()
	x.reachEachOther(t)
}

// loss has a third of the packets to and from a node get lost: requests take longer.
func (x *across) loss(t *testing.T) {
	heal := lossy(t, x.all[2], 30)
	for range 3 {
		page, err := x.get(t, x.pods[1], net.JoinHostPort(x.pods[2].Status.PodIP, "8080"), 60)
		if err != nil || !strings.Contains(page, "in pod "+x.pods[2].Name) {
			t.Errorf("with loss: %s, %v", page, err)
		}
	}
	heal()
	x.reachEachOther(t)
}

// cutOff cuts a node off for longer than its lease is good for. Its pod of a StatefulSet is not
// started elsewhere while it may run; that of a Deployment is.
func (x *across) cutOff(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	away := x.all[2]
	template := drawnTo(away, "stateless")
	_, err := x.kube.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "stateless"},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before, once := x.stateful(ctx, t, away)
	watcher, err := x.kube.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{
		LabelSelector: "set=state", ResourceVersion: before.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()

	heal := lossy(t, away, 100)
	began := time.Now()
	x.tainted(ctx, t, away, true)
	if took := time.Since(began); took < 30*time.Second {
		t.Errorf("the node is unreachable after %v: its lease is good for longer", took)
	}
	x.runs(ctx, t, "stateless", func(node string) bool { return node != away.Name })
	x.evicted(ctx, t, before)
	if on := x.running(t, "state-0"); !slices.Equal(on, []string{away.Name}) {
		t.Errorf("while its node is cut off, state-0 runs on %v", on)
	}
	timer := time.NewTimer(time.Until(began.Add(time.Minute)))
	for waiting := true; waiting; {
		select {
		case e := <-watcher.ResultChan():
			if e.Type != watch.Modified {
				t.Errorf("while its node is cut off, state-0 is %s", e.Type)
			}
		case <-timer.C:
			waiting = false
		}
	}

	heal()
	for gone := false; ; {
		e, open := <-watcher.ResultChan()
		if !open {
			t.Fatal("the watch has ended")
		}
		p, _ := e.Object.(*corev1.Pod)
		if e.Type == watch.Deleted && p.UID == before.UID {
			gone = true
			if on := x.running(t, "state-0", string(before.UID)); len(on) > 0 {
				t.Errorf("state-0 is deleted and runs on %v", on)
			}
		}
		if e.Type == watch.Added {
			if !gone {
				t.Error("another state-0 is there before the first is gone")
			}
			break
		}
	}
	x.tainted(ctx, t, away, false)
	ranOnce(ctx, t, once, before.UID, awaitPod(ctx, t, x.kube, "state-0").UID)
	if on := x.running(t, "state-0"); len(on) != 1 {
		t.Errorf("state-0 runs on %v", on)
	}
	x.runs(ctx, t, "stateless", func(string) bool { return true })
	x.reachEachOther(t)
}

// tainted waits until a node has upstream's taints of one that is unreachable, or none, and its
// lease is renewed or not.
func (x *across) tainted(ctx context.Context, t *testing.T, m *machine, want bool) {
	t.Helper()
	testkit.Eventually(ctx, t, fmt.Sprintf("node %s is unreachable: %t", m.Name, want), func() (bool, error) {
		n, err := x.kube.CoreV1().Nodes().Get(ctx, m.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		effects := map[corev1.TaintEffect]bool{}
		for _, taint := range n.Spec.Taints {
			if taint.Key == corev1.TaintNodeUnreachable {
				effects[taint.Effect] = true
			}
		}
		lease, err := x.kube.CoordinationV1().Leases("kube-node-lease").Get(ctx, m.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		renewed := time.Since(lease.Spec.RenewTime.Time) < 15*time.Second
		return len(effects) == map[bool]int{true: 2, false: 0}[want] && renewed != want,
			fmt.Errorf("taints %v, lease of %s", slices.Collect(maps.Keys(effects)), lease.Spec.RenewTime)
	})
}

// runs waits until one pod of a set runs on a node that is good, and none other is there that is
// not about to end.
func (x *across) runs(ctx context.Context, t *testing.T, set string, good func(node string) bool) {
	t.Helper()
	testkit.Eventually(ctx, t, "a pod of "+set+" runs", func() (bool, error) {
		pods, err := x.kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "set=" + set})
		if err != nil {
			return false, err
		}
		n := 0
		var seen []string
		for _, p := range pods.Items {
			seen = append(seen, fmt.Sprint(p.Spec.NodeName, " ", p.Status.Phase, " ", p.DeletionTimestamp))
			if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && good(p.Spec.NodeName) {
				n++
			}
		}
		return n == 1, fmt.Errorf("pods: %s", seen)
	})
}

// running are the nodes on which a container of a pod runs, as their coracleds say.
func (x *across) running(t *testing.T, pod string, uid ...string) []string {
	t.Helper()
	out, said, err := x.all[0].Run("ps", "-o", "json")
	var shown []struct{ Node, Pod, LogPath string }
	if err == nil {
		err = json.Unmarshal([]byte(out), &shown)
	}
	if err != nil {
		t.Fatalf("ps: %v: %s%s", err, out, said)
	}
	var on []string
	for _, c := range shown {
		if c.Pod == pod && (len(uid) == 0 || strings.Contains(c.LogPath, uid[0])) {
			on = append(on, c.Node)
		}
	}
	return on
}
