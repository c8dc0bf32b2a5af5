// Package nodes uses a cluster of two nodes, each a network and mount namespace of this machine
// with its own coracled, made by `coracle up` and `coracle join` from the shipped binaries.
package nodes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-project/coracle/cluster/integration/isolate"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

const (
	// patience bounds what a test waits for, on however slow a machine.
	patience = 5 * time.Minute

	firstIP, secondIP = "192.0.2.1", "192.0.2.2"

	registry = firstIP + ":5000"
	image    = registry + "/demo/web:1"
)

func TestMain(m *testing.M) { os.Exit(isolate.Run(m.Run)) }

// bin is the path of a file in the directory of what is built.
func bin(elem ...string) string {
	dir := os.Getenv("CORACLE_BIN")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "bin")
	}
	path, err := filepath.Abs(filepath.Join(append([]string{dir}, elem...)...))
	if err != nil {
		panic(err) // there is no working directory
	}
	return path
}

// machine is where one node runs.
type machine struct {
	name, ip, dir string
	holder        int // the process that holds its namespaces; 0 for the test's own
}

func (m *machine) root() string { return filepath.Join(m.dir, "root") }

// run runs coracle on the machine, and returns what it said on stdout and stderr.
func (m *machine) run(args ...string) (string, string, error) {
	args = append([]string{bin("coracle")}, append(args, "--root", m.root(), "--state", filepath.Join(m.dir, "state"))...)
	if m.holder != 0 {
		args = append([]string{"nsenter", "--target", strconv.Itoa(m.holder), "--net", "--mount", "--"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	return out.String(), said.String(), err
}

func (m *machine) must(t *testing.T, args ...string) string {
	t.Helper()
	out, said, err := m.run(args...)
	if err != nil {
		t.Fatalf("%s: coracle %s: %v\n%s%s\n%s", m.name, args[0], err, out, said, m.logs())
	}
	t.Logf("%s: coracle %s\n%s", m.name, args[0], out)
	return out
}

// refused expects one line of error with some words, and no other.
func (m *machine) refused(t *testing.T, want string, args ...string) {
	t.Helper()
	out, said, err := m.run(args...)
	said = strings.TrimSpace(said)
	if err == nil || !strings.Contains(said, want) || strings.Contains(said, "\n") {
		t.Errorf("%s: coracle %s: %v\n%s%s\nwant one line with %q", m.name, strings.Join(args, " "), err, out, said, want)
	}
}

func (m *machine) logs() string {
	var all strings.Builder
	for _, name := range []string{"kube.log", "coracled.log"} {
		data, err := os.ReadFile(filepath.Join(m.root(), "logs", name))
		if err == nil {
			fmt.Fprintf(&all, "--- %s of %s\n%s\n", name, m.name, data[max(0, len(data)-6000):])
		}
	}
	return all.String()
}

// flags are those of up and join that keep nodes of one machine apart.
func (m *machine) flags() []string {
	return []string{
		"--node-name", m.name, "--node-ip", m.ip, "--runtime-config", filepath.Join(m.dir, "coracled.toml"), "--cgroup-root", m.cgroup(),
		"--pod-log-dir", filepath.Join(m.dir, "pods"), "--timeout", patience.String(), "--eviction-hard", "memory.available<0%",
	}
}

func (m *machine) cgroup() string {
	return fmt.Sprintf("/coracle-nodes-%s-%s", filepath.Base(m.dir), m.name)
}

func newMachine(t *testing.T, name, ip string) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "n-") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &machine{name: name, ip: ip, dir: dir}
	settings := fmt.Sprintf("[image.registry.%q]\nplain_http = true\n[network]\ncni_conf_dir = %q\n", registry, filepath.Join(dir, "cni"))
	if err := os.WriteFile(filepath.Join(dir, "coracled.toml"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

// secondMachine makes namespaces for another node, on one link with the first.
func secondMachine(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t, "two", secondIP)
	hold := exec.Command("unshare", "--net", "--mount", "sh", "-c", "echo ready; exec sleep infinity")
	hold.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	ready, err := hold.StdoutPipe()
	if err == nil {
		err = hold.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hold.Process.Kill(); _ = hold.Wait() })
	if _, err := ready.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	m.holder = hold.Process.Pid
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0"}, PeerName: "lan0", PeerNamespace: netlink.NsPid(m.holder)}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	m.network(t, func(h *netlink.Handle) error { return furnish(h, m.ip) })
	first := &machine{}
	first.network(t, func(h *netlink.Handle) error { return furnish(h, firstIP) })
	return m
}

// network calls f with the machine's network.
func (m *machine) network(t *testing.T, f func(*netlink.Handle) error) {
	t.Helper()
	ns, err := netns.Get()
	if m.holder != 0 {
		_ = ns.Close()
		ns, err = netns.GetFromPid(m.holder)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err == nil {
		defer h.Close()
		err = f(h)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func furnish(h *netlink.Handle, ip string) error {
	for name, address := range map[string]string{"lo": "", "lan0": ip + "/24"} {
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		if address != "" {
			a, err := netlink.ParseAddr(address)
			if err != nil {
				return err
			}
			if err := h.AddrAdd(l, a); err != nil {
				return err
			}
		}
		if err := h.LinkSetUp(l); err != nil {
			return err
		}
	}
	return nil
}

func startRegistry(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "registry.yml")
	config := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %s}}\n"+
		"http: {addr: %q}\n", dir, registry)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := exec.Command(bin("tools", "registry"), "serve", file)
	serve.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = serve.Process.Kill(); _ = serve.Wait() })
	testkit.Eventually(t.Context(), t, "push the images", func() (bool, error) { // it says nothing when it is ready
		out, err := exec.Command(bin("test", "imagetool"), "push", "-registry", registry, "-set", "demo").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err == nil, err
	})
}

func client(t *testing.T, m *machine) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(m.root(), "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// invitation is what `coracle token create -o json` says.
type invitation struct {
	Token, Server, CAHash, Join string
}

func invite(t *testing.T, m *machine, args ...string) invitation {
	t.Helper()
	var i invitation
	out, said, err := m.run(append([]string{"token", "create", "-o", "json"}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &i)
	}
	if err != nil {
		t.Fatalf("token create: %v\n%s%s", err, out, said)
	}
	return i
}

func TestTwoNodes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	two := secondMachine(t)
	one := newMachine(t, "one", firstIP)
	startRegistry(t)
	t.Cleanup(func() {
		for _, m := range []*machine{two, one} {
			if _, said, err := m.run("down"); err != nil {
				t.Errorf("%s: down: %v\n%s", m.name, err, said)
			}
		}
	})

	two.refused(t, "no cluster of this machine", "token", "list")
	two.refused(t, "has joined no cluster", "leave")
	one.must(t, append([]string{"up", "--bind-address", firstIP}, one.flags()...)...)
	kube := client(t, one)
	i := invite(t, one, "--description", "rack 7")
	if want := "coracle join https://" + firstIP + ":6443 --token " + i.Token + " --ca-hash " + i.CAHash; i.Join != want {
		t.Errorf("token create prints %q, want %q", i.Join, want)
	}
	if list := one.must(t, "token", "list"); !strings.Contains(list, "DESCRIPTION") || !strings.Contains(list, "rack 7") {
		t.Errorf("token list: %s", list)
	}

	join := func(token, hash string, more ...string) []string {
		return append(append([]string{"join", i.Server, "--token", token, "--ca-hash", hash}, two.flags()...), more...)
	}
	id, _, _ := strings.Cut(i.Token, ".")
	two.refused(t, "does not know token zzzzzz: it was deleted or has expired", join("zzzzzz.0123456789abcdef", i.CAHash)...)
	two.refused(t, "the secret of token "+id+" is not the one", join(id+".0123456789abcdef", i.CAHash)...)
	two.refused(t, "is another cluster: its authority has the hash "+i.CAHash, join(i.Token, "sha256:"+strings.Repeat("0", 64))...)
	two.refused(t, "the cluster has a node one: choose another --node-name", join(i.Token, i.CAHash, "--node-name", "one")...)
	one.refused(t, "this machine has a cluster of its own", join(i.Token, i.CAHash)...)

	early := pod(ctx, t, kube, "early", "two") // its node has no range of addresses when it is registered
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(i.Token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	two.must(t, append([]string{"join", i.Server, "--token-file", file, "--ca-hash", i.CAHash}, two.flags()...)...)
	two.refused(t, "this machine is node two of the cluster at "+i.Server, join(i.Token, i.CAHash)...)
	two.must(t, "status")
	nodes := map[string]*corev1.Node{}
	seen := map[string]bool{}
	for _, m := range []*machine{one, two} {
		n, err := kube.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(n.Spec.PodCIDRs) != 2 || seen[n.Spec.PodCIDRs[0]] || seen[n.Spec.PodCIDRs[1]] {
			t.Errorf("node %s has networks %v", m.name, n.Spec.PodCIDRs)
		}
		seen[n.Spec.PodCIDRs[0]], seen[n.Spec.PodCIDRs[1]] = true, true
		nodes[m.name] = n
	}

	_, range4, _ := net.ParseCIDR(nodes["two"].Spec.PodCIDRs[0])
	if ip := awaitPod(ctx, t, kube, early.Name).Status.PodIP; !range4.Contains(net.ParseIP(ip)) {
		t.Errorf("the pod that was bound before its node joined has %s, which is not of %s", ip, range4)
	}

	// A pod on each, and each reaches the other, which sees the pod's own address. The API server
	// believes the kubelet of the other node by its serving certificate.
	addresses := map[string]string{}
	for _, m := range []*machine{one, two} {
		p := pod(ctx, t, kube, "web-"+m.name, m.name)
		addresses[m.name] = awaitPod(ctx, t, kube, p.Name).Status.PodIP
		_, network, _ := net.ParseCIDR(nodes[m.name].Spec.PodCIDRs[0])
		if !network.Contains(net.ParseIP(addresses[m.name])) {
			t.Errorf("the pod on node %s has %s, which is not of %s", m.name, addresses[m.name], network)
		}
	}
	for from, to := range map[string]string{"one": "two", "two": "one"} {
		name := "web-" + from
		page := kubectl(ctx, t, one, "exec", name, "--", "timeout", "10", "wget", "-q", "-O", "-", "http://"+addresses[to]+":8080")
		if !strings.Contains(page, "in pod web-"+to) {
			t.Errorf("the pod on node %s reads from that on node %s: %s", from, to, page)
		}
		if log := kubectl(ctx, t, one, "logs", "web-"+to); !strings.Contains(log, "GET / from "+addresses[from]) {
			t.Errorf("the log of pod web-%s: %s", to, log)
		}
	}

	two.refused(t, "'coracle leave", "down", "--purge")
	out := two.must(t, "leave")
	if !strings.Contains(out, "node two is deleted from the cluster") {
		t.Errorf("leave says\n%s", out)
	}
	if _, err := kube.CoreV1().Nodes().Get(ctx, "two", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node after leave: %v", err)
	}
	if _, err := os.Stat(filepath.Join(two.root(), "kube")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("leave has left the agent's directory: %v", err)
	}

	// It joins again, and then the cluster is gone.
	two.must(t, join(i.Token, i.CAHash)...)
	one.must(t, "token", "delete", i.Token)
	one.refused(t, "no token has the ID "+id, "token", "delete", i.Token)
	one.must(t, "down")
	two.refused(t, "the cluster at "+i.Server+" cannot be reached", "leave", "--timeout", "5s")
	two.must(t, "leave", "--force", "--timeout", "5s")
}

// kubectl runs kubectl as the administrator of a machine's cluster.
func kubectl(ctx context.Context, t *testing.T, m *machine, args ...string) string {
	t.Helper()
	args = append([]string{"--kubeconfig", filepath.Join(m.root(), "kubeconfig")}, args...)
	out, err := exec.CommandContext(ctx, bin("tools", "kubectl"), args...).CombinedOutput()
	if err != nil {
		t.Errorf("kubectl %s: %v\n%s", strings.Join(args[2:], " "), err, out)
	}
	return string(out)
}

func pod(ctx context.Context, t *testing.T, kube kubernetes.Interface, name, node string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "c", Image: image}},
		},
	}
	if _, err := kube.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return p
}

func awaitPod(ctx context.Context, t *testing.T, kube kubernetes.Interface, name string) *corev1.Pod {
	t.Helper()
	var p *corev1.Pod
	testkit.Eventually(ctx, t, fmt.Sprintf("pod %s runs", name), func() (bool, error) {
		var err error
		if p, err = kube.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		if p.Status.Phase == corev1.PodFailed {
			t.Fatalf("pod %s failed: %+v", name, p.Status.ContainerStatuses)
		}
		runs := p.Status.Phase == corev1.PodRunning && p.Status.PodIP != ""
		return runs, fmt.Errorf("it is %s: %+v", p.Status.Phase, p.Status.ContainerStatuses)
	})
	return p
}
