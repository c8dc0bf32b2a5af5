package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// bridged is a pod that CNI's plugin bridge has connected, on a node where neither coracled nor our
// kubelet runs.
type bridged struct {
	ns      netns.NsHandle
	address netip.Addr
}

// bridgeNode is the name of that node. Its pods are in the tests' network namespace, as the API
// server is.
const bridgeNode = "bridged"

// connect calls the plugin, and again at the test's end.
func connect(t *testing.T, bridge, subnet, name string) bridged {
	t.Helper()
	made := make(chan netns.NsHandle)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends
		ns, err := netns.New()
		if err == nil {
			var lo netlink.Link
			if lo, err = netlink.LinkByName("lo"); err == nil {
				err = netlink.LinkSetUp(lo)
			}
		}
		if err != nil {
			t.Errorf("make a network namespace: %v", err)
		}
		made <- ns
	}()
	ns := <-made
	config, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": bridge, "type": "bridge", "bridge": bridge, "isGateway": true,
		"ipam": map[string]any{
			"type": "host-local", "dataDir": filepath.Join(boat.dir, "ipam"), "ranges": [][]map[string]string{{{"subnet": subnet}}},
			"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	plugin := func(command string) ([]byte, error) {
		cmd := exec.Command(bin("tools", "cni", "bridge"))
		cmd.Stdin = bytes.NewReader(config)
		cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+name, "CNI_IFNAME=eth0", "CNI_PATH="+bin("tools", "cni"),
			fmt.Sprintf("CNI_NETNS=/proc/%d/fd/%d", os.Getpid(), int(ns)))
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("plugin bridge, %s: %w: %s", command, err, out)
		}
		return out, nil
	}
	out, err := plugin("ADD")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := plugin("DEL"); err != nil {
			t.Error(err)
		}
		_ = ns.Close()
	})
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != 1 {
		t.Fatalf("the plugin says %s: %v", out, err)
	}
	return bridged{ns, result.IPs[0].Address.Addr()}
}

// serve listens at port 8080 until the test ends.
func (b bridged) serve(t *testing.T) {
	t.Helper()
	var l net.Listener
	err := onNeighbour(b.ns, func() (err error) {
		l, err = net.Listen("tcp", ":8080")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
}

// reaches says whether a connection is answered. One that is not is given up soon.
func (b bridged) reaches(t *testing.T, server bridged, patience time.Duration) bool {
	t.Helper()
	err := onNeighbour(b.ns, func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(server.address, 8080).String(), patience)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	var failed net.Error
	if err != nil && (!errors.As(err, &failed) || !failed.Timeout()) {
		t.Errorf("connect to %s: %v", server.address, err)
	}
	return err == nil
}

// "coracle-kube policy" enforces NetworkPolicies on a node whose pods CNI's plugin bridge connects:
// for all packets that the node routes, and between pods of one bridge exactly where br_netfilter
// shows these to the hooks, as coracle doctor says.
func TestPoliciesAloneOnABridge(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	for _, bridge := range []string{"bridged0", "bridged1"} {
		t.Cleanup(func() { // after the pods
			if l, err := netlink.LinkByName(bridge); err == nil {
				_ = netlink.LinkDel(l)
			}
		})
	}
	server, friend := connect(t, "bridged0", "10.201.0.0/24", ns+"-server"), connect(t, "bridged0", "10.201.0.0/24", ns+"-friend")
	same, other := connect(t, "bridged0", "10.201.0.0/24", ns+"-same"), connect(t, "bridged1", "10.201.1.0/24", ns+"-other")
	farFriend := connect(t, "bridged1", "10.201.1.0/24", ns+"-far")
	server.serve(t)
	filter := func(value string) { // whether packets on bridges cross the hooks of IPv4
		const sysctl = "/proc/sys/net/bridge/bridge-nf-call-iptables"
		if err := os.WriteFile(sysctl, []byte(value), 0); err != nil {
			t.Fatalf("%v: load the kernel's module br_netfilter", err)
		}
	}
	filter("1")
	t.Cleanup(func() { filter("1") }) // the default of network namespaces
	// Pods of a node that there is not are removed after a while.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: bridgeNode}, Spec: corev1.NodeSpec{Unschedulable: true}}
	if _, err := boat.kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := boat.kube.CoreV1().Nodes().Delete(context.Background(), bridgeNode, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	for name, pod := range map[string]bridged{"server": server, "friend": friend, "same": same, "other": other, "far": farFriend} {
		app := name
		if name == "far" {
			app = "friend"
		}
		created, err := boat.kube.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
			Spec:       corev1.PodSpec{NodeName: bridgeNode, Containers: []corev1.Container{{Name: "a", Image: image}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // no kubelet does
			now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
			if err := boat.kube.CoreV1().Pods(ns).Delete(context.Background(), name, now); err != nil {
				t.Error(err)
			}
		})
		created.Status.Phase = corev1.PodRunning
		created.Status.PodIPs = []corev1.PodIP{{IP: pod.address.String()}}
		created.Status.PodIP = pod.address.String()
		if _, err := boat.kube.CoreV1().Pods(ns).UpdateStatus(ctx, created, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, client := range map[string]bridged{"friend": friend, "same": same, "other": other, "far": farFriend} {
		if !client.reaches(t, server, time.Minute) {
			t.Fatalf("without policies, %s does not reach the server: this shows nothing", name)
		}
	}

	const table = "alone-on-a-bridge"
	policy := exec.Command(bin("coracle-kube"), "policy", "--kubeconfig", filepath.Join(boat.root(), "kubeconfig"), "--node-name", bridgeNode,
		"--table", table, "--pod-cidr", "10.201.0.0/16")
	var said bytes.Buffer
	policy.Stdout, policy.Stderr = &said, &said
	if err := policy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(policy.Process.Signal(syscall.SIGTERM), policy.Wait()); err != nil || t.Failed() {
			t.Errorf("%v: %s", err, said.String())
		}
		if err := run(bin("coracle-kube"), "policy", "remove", "--table", table); err != nil {
			t.Error(err)
		}
	})
	if _, err := boat.kube.NetworkingV1().NetworkPolicies(ns).Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "friends"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: withApp("server"),
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: ptr.To(withApp("friend"))}}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const silence = 300 * time.Millisecond
	eventually(ctx, t, "the policy is in force", func() (bool, error) {
		rules, err := exec.CommandContext(ctx, "nft", "list", "table", "inet", table).CombinedOutput()
		return strings.Contains(string(rules), server.address.String()) && !other.reaches(t, server, silence), err
	})
	for _, tc := range []struct {
		name    string
		client  bridged
		reaches bool
	}{
		{"a friend of another bridge", farFriend, true},
		{"a friend of the same bridge", friend, true},
		{"another pod of the same bridge", same, false},
	} {
		if got := tc.client.reaches(t, server, map[bool]time.Duration{true: time.Minute, false: silence}[tc.reaches]); got != tc.reaches {
			t.Errorf("%s reaches the server: %v, want %v", tc.name, got, tc.reaches)
		}
	}
	filter("0")
	if !same.reaches(t, server, time.Minute) {
		t.Error("without br_netfilter a policy holds between pods of one bridge: coracle doctor says that it does not")
	}
	if other.reaches(t, server, silence) || !farFriend.reaches(t, server, time.Minute) {
		t.Error("without br_netfilter the policy does not hold between bridges")
	}
}
