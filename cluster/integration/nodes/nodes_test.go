// Package nodes uses clusters of several nodes on this machine, made by `coracle up --nodes` and
// `coracle join` from the shipped binaries.
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

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-project/coracle/cluster/integration/coraclecmd"
	"github.com/coracle-project/coracle/cluster/integration/isolate"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

const (
	// patience bounds what a test waits for, on however slow a machine.
	patience = 5 * time.Minute

	// firstIP is the address of the first node, which `coracle up --nodes` gives it.
	firstIP = "10.84.0.1"

	registry = firstIP + ":5000"
	image    = registry + "/demo/web:1"
)

func TestMain(m *testing.M) {
	for name, program := range programs {
		if value := os.Getenv(name); value != "" {
			os.Exit(program(value))
		}
	}
	os.Exit(isolate.Run(m.Run))
}

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

// machine is one of the nodes of a cluster: number n, as `coracle up --nodes` counts them.
type machine struct {
	coraclecmd.Node
	n   int
	dir string // the cluster's
}

// cluster returns the first nodes of a cluster that is yet to be started.
func cluster(t *testing.T, count int) []*machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "n-") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	settings := fmt.Sprintf("[image.registry.%q]\nplain_http = true\n[network]\ncni_conf_dir = %q\n", registry, filepath.Join(dir, "cni"))
	if err := os.WriteFile(filepath.Join(dir, "coracled.toml"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	all := []*machine{newMachine(1, "one", dir)}
	for n := 2; n <= count; n++ {
		all = append(all, newMachine(n, fmt.Sprintf("one-%d", n), dir))
	}
	t.Cleanup(func() {
		if _, said, err := all[0].Run("down"); err != nil {
			t.Errorf("down: %v\n%s", err, said)
		}
	})
	return all
}

func newMachine(n int, name, dir string) *machine {
	root := filepath.Join(dir, "root")
	argv := []string{bin("coracle"), "--root", root, "--state", filepath.Join(dir, "state")}
	if n > 1 {
		argv, root = append(argv, "--node", name), filepath.Join(root, "nodes", strconv.Itoa(n))
	}
	return &machine{Node: coraclecmd.Node{Name: name, Root: root, Argv: func() []string { return argv }}, n: n, dir: dir}
}

// flags are those of up and join that keep nodes of one machine apart.
func (m *machine) flags() []string {
	return []string{
		"--config", "", "--node-name", m.Name, "--node-ip", fmt.Sprintf("10.84.0.%d,fd84:c0ac:1e00::%[1]d", m.n),
		"--runtime-config", filepath.Join(m.dir, "coracled.toml"), "--cgroup-root", m.cgroup(),
		"--pod-log-dir", filepath.Join(m.Root, "pods"), "--timeout", patience.String(), "--eviction-hard", "memory.available<0%",
	}
}

// cgroup is the parent of the node's pods: up gives further nodes that of the first with a number.
func (m *machine) cgroup() string {
	first := "/coracle-nodes-" + filepath.Base(m.dir)
	if m.n == 1 {
		return first
	}
	return fmt.Sprintf("%s-%d", first, m.n)
}

// up starts the cluster.
func up(t *testing.T, all []*machine, more ...string) {
	t.Helper()
	args := append([]string{"up", "--nodes", strconv.Itoa(len(all))}, all[0].flags()...)
	all[0].Must(t, append(args, more...)...)
}

// startRegistry returns the directory of the registry's data.
func startRegistry(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
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
	return dir
}

func client(t *testing.T, m *machine) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(m.Root, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

func TestTwoNodes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all := cluster(t, 2)
	one, two := all[0], all[1]
	one.Refused(t, "--nodes 0 is not between 1 and 16", "up", "--nodes", "0")
	one.Refused(t, "--nodes 100 is not between 1 and 16", "up", "--nodes", "100")
	one.Refused(t, "no cluster of this machine", "token", "list")
	up(t, all)
	data := startRegistry(t)
	kube := client(t, one)
	one.Refused(t, "the cluster runs with --nodes 2", "up", "--nodes", "3")
	one.Refused(t, "'coracle up --nodes' has made no node of this name", "ps", "--node", "two")
	one.Must(t, "up") // it finds everything
	two.Refused(t, "this machine is node one-2 of the cluster at https://"+firstIP+":6443", "join", "https://"+firstIP+":6443",
		"--token", "abcdef.0123456789abcdef", "--ca-hash", "sha256:"+strings.Repeat("0", 64))
	if list := one.Must(t, "token", "list"); strings.Contains(list, "--nodes") {
		t.Errorf("the token of up --nodes is still there: %s", list)
	}
	if said := one.Must(t, "status"); strings.Count(said, "coracled ") != 2 || !strings.Contains(said, "one-2") {
		t.Errorf("status does not show both nodes: %s", said)
	}
	nodes := map[string]*corev1.Node{}
	seen := map[string]bool{}
	for _, m := range []*machine{one, two} {
		n, err := kube.CoreV1().Nodes().Get(ctx, m.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(n.Spec.PodCIDRs) != 2 || seen[n.Spec.PodCIDRs[0]] || seen[n.Spec.PodCIDRs[1]] {
			t.Errorf("node %s has networks %v", m.Name, n.Spec.PodCIDRs)
		}
		seen[n.Spec.PodCIDRs[0]], seen[n.Spec.PodCIDRs[1]] = true, true
		nodes[m.Name] = n
	}

	// A pod on each, and each reaches the other, which sees the pod's own address. The API server
	// believes the kubelet of the other node by its serving certificate. The second node gets the
	// layers of the image from the first.
	addresses := map[string]string{}
	restore := func() {}
	for _, m := range []*machine{one, two} {
		p := pod(ctx, t, kube, "web-"+m.Name, m.Name)
		addresses[m.Name] = awaitPod(ctx, t, kube, p.Name).Status.PodIP
		_, network, _ := net.ParseCIDR(nodes[m.Name].Spec.PodCIDRs[0])
		if !network.Contains(net.ParseIP(addresses[m.Name])) {
			t.Errorf("the pod on node %s has %s, which is not of %s", m.Name, addresses[m.Name], network)
		}
		if m == one {
			restore = loseLayers(t, data)
		}
	}
	restore()
	for from, to := range map[string]string{"one": "one-2", "one-2": "one"} {
		name := "web-" + from
		page := kubectl(t, one, "exec", name, "--", "timeout", "10", "wget", "-q", "-O", "-", "http://"+addresses[to]+":8080")
		if !strings.Contains(page, "in pod web-"+to) {
			t.Errorf("the pod on node %s reads from that on node %s: %s", from, to, page)
		}
		if log := kubectl(t, one, "logs", "web-"+to); !strings.Contains(log, "GET / from "+addresses[from]) {
			t.Errorf("the log of pod web-%s: %s", to, log)
		}
	}

	var shown []struct{ Node, Pod string }
	if err := json.Unmarshal([]byte(one.Must(t, "ps", "-o", "json")), &shown); err != nil {
		t.Fatal(err)
	}
	for _, c := range shown {
		if c.Pod != "web-"+c.Node {
			t.Errorf("ps shows pod %s on node %s", c.Pod, c.Node)
		}
	}
	if len(shown) != 2 {
		t.Errorf("ps shows %v", shown)
	}

	// What has a container finds its node.
	for _, name := range []string{"one", "one-2"} {
		if said := one.Must(t, "exec", "web-"+name, "--", "cat", "/etc/hostname"); said != "web-"+name+"\n" {
			t.Errorf("exec in the pod on node %s: %q", name, said)
		}
		if log := one.Must(t, "logs", "web-"+name); !strings.Contains(log, "GET / from ") {
			t.Errorf("the log of the pod on node %s: %q", name, log)
		}
		if steps := one.Must(t, "trace", "web-"+name); !strings.Contains(steps, "pod default/web-"+name) {
			t.Errorf("how the pod on node %s was started: %q", name, steps)
		}
	}
	one.Refused(t, `"c" could be each of default/web-one`, "exec", "c", "--", "true")
	one.Refused(t, `no container is called "web-none"`, "logs", "web-none")

	// Regression: up believed what the kubelet of before had said of the Node.
	two.Must(t, "down")
	began := time.Now().Truncate(time.Second)
	two.Must(t, "up")
	again, err := kube.CoreV1().Nodes().Get(ctx, two.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range again.Status.Conditions {
		if c.Type == corev1.NodeReady && c.LastHeartbeatTime.Time.Before(began) {
			t.Errorf("after down and up, up returned with the condition of %s, before %s", c.LastHeartbeatTime, began)
		}
	}

	two.Refused(t, "'coracle leave", "down", "--purge")
	out := two.Must(t, "leave")
	if !strings.Contains(out, "node one-2 is deleted from the cluster") {
		t.Errorf("leave says\n%s", out)
	}
	if _, err := kube.CoreV1().Nodes().Get(ctx, "one-2", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node after leave: %v", err)
	}
	if _, err := os.Stat(filepath.Join(two.Root, "kube")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("leave has left the agent's directory: %v", err)
	}

	// It joins again, by hand, and then the cluster is gone.
	i := one.Invite(t, "--description", "rack 7")
	if want := "coracle join https://" + firstIP + ":6443 --token " + i.Token + " --ca-hash " + i.CAHash; i.Join != want {
		t.Errorf("token create prints %q, want %q", i.Join, want)
	}
	if list := one.Must(t, "token", "list"); !strings.Contains(list, "DESCRIPTION") || !strings.Contains(list, "rack 7") {
		t.Errorf("token list: %s", list)
	}
	join := func(token, hash string, more ...string) []string {
		return append(append([]string{"join", i.Server, "--token", token, "--ca-hash", hash}, two.flags()...), more...)
	}
	id, _, _ := strings.Cut(i.Token, ".")
	two.Refused(t, "has joined no cluster", "leave")
	two.Refused(t, "does not know token zzzzzz: it was deleted or has expired", join("zzzzzz.0123456789abcdef", i.CAHash)...)
	two.Refused(t, "the secret of token "+id+" is not the one", join(id+".0123456789abcdef", i.CAHash)...)
	two.Refused(t, "is another cluster: its authority has the hash "+i.CAHash, join(i.Token, "sha256:"+strings.Repeat("0", 64))...)
	two.Refused(t, "the cluster has a node one: choose another --node-name", join(i.Token, i.CAHash, "--node-name", "one")...)
	one.Refused(t, "this machine has a cluster of its own", join(i.Token, i.CAHash)...)
	early := pod(ctx, t, kube, "early", "one-2") // its node has no range of addresses when it is registered
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(i.Token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	two.Must(t, append([]string{"join", i.Server, "--token-file", file, "--ca-hash", i.CAHash}, two.flags()...)...)
	two.Must(t, "status")
	again, err = kube.CoreV1().Nodes().Get(ctx, "one-2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, range4, _ := net.ParseCIDR(again.Spec.PodCIDR)
	if ip := awaitPod(ctx, t, kube, early.Name).Status.PodIP; !range4.Contains(net.ParseIP(ip)) {
		t.Errorf("the pod that was bound before its node joined has %s, which is not of %s", ip, range4)
	}
	one.Must(t, "token", "delete", i.Token)
	one.Refused(t, "no token has the ID "+id, "token", "delete", i.Token)
	end(t, one)
	two.Refused(t, "the cluster at "+i.Server+" cannot be reached", "leave", "--timeout", "5s")
	two.Must(t, "leave", "--force", "--timeout", "5s")
}

// end ends the cluster process of a node, and its supervisor.
func end(t *testing.T, m *machine) {
	t.Helper()
	fd, err := unix.PidfdOpen(m.supervisor(t), 0)
	if err == nil {
		defer unix.Close(fd)
		err = unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
	}
	if err == nil {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// supervisor is the process that has the lock of the cluster's supervisor.
func (m *machine) supervisor(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, "state", "kube.lock"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// kubectl runs kubectl as the administrator of a machine's cluster.
func kubectl(t *testing.T, m *machine, args ...string) string {
	t.Helper()
	out, said, err := m.kubectl(args...)
	if err != nil {
		t.Errorf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, out, said)
	}
	return out + said
}

// kubectl returns what it prints, and what it complains of.
func (m *machine) kubectl(args ...string) (string, string, error) {
	cmd := exec.Command(bin("tools", "kubectl"), append([]string{"--kubeconfig", filepath.Join(m.Root, "kubeconfig")}, args...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	return out.String(), said.String(), err
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
