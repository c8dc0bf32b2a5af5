package kube

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
)

// What README says of `make up`: the demo's web server is reached by its Service's name from
// another pod, and by curl from the host through a node port. `make down` removes every trace.
func TestDemo(t *testing.T) {
	dir, err := os.MkdirTemp("", "demo-") // not t.TempDir: socket paths have to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	const node = "192.0.2.10"
	giveAddress(t, node+"/24") // a machine has one that is not loopback
	root, cgroup := filepath.Join(dir, "root"), "coracle-"+filepath.Base(dir)
	before := findTraces(t, cgroup)
	demo := func(script string, flags ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join("..", "..", "hack", "demo", script), flags...)
		cmd.Env = append(os.Environ(), "DEMO_ROOT="+root, "DEMO_STATE="+filepath.Join(dir, "state"), "DEMO_CGROUP="+cgroup)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return string(out)
	}
	down := func() {
		t.Helper()
		demo("down.sh")
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("down has left %v, %v", left, err)
		}
		if links, err := net.Interfaces(); err != nil || len(links) != 3 {
			t.Errorf("down has left of links %v, %v", links, err)
		}
		if left := findTraces(t, cgroup).since(before).all(); len(left) > 0 {
			t.Errorf("down has left %v", left)
		}
	}
	t.Cleanup(func() {
		if _, err := os.Stat(root); err == nil { // the test has failed
			down()
		}
	})
	// How much room the machine has is not the test's business.
	out := demo("up.sh", "--node-name", "boat", "--node-ip", node, "--timeout", patience.String(), "--eviction-hard", "memory.available<0%")
	// What down has to remove is there.
	if has := findTraces(t, cgroup).since(before); len(has.tables) == 0 || len(has.addresses) == 0 || len(has.cgroups) == 0 {
		t.Errorf("while it runs, the demo has %+v", has)
	}
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(testkit.Bin(t, "tools", "kubectl"),
			append([]string{"--kubeconfig", filepath.Join(root, "kubeconfig")}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	curl := func(address string) string {
		t.Helper()
		out, err := exec.Command("curl", "-fsS", "--noproxy", "*", "http://"+address+":30080/").CombinedOutput()
		if err != nil {
			t.Fatalf("curl http://%s:30080/: %v\n%s", address, err, out)
		}
		return string(out)
	}
	const answer = "Hello from Coracle, in pod web-"
	for how, said := range map[string]string{
		"from another pod": kubectl("exec", "deployment/visitor", "--", "wget", "-q", "-O", "-", "http://web/"),
		"with the whole name": kubectl("exec", "deployment/visitor", "--", "wget", "-q", "-O", "-",
			"http://web.default.svc.cluster.local/"),
		"from the host":              curl(node),
		"at the gateway of the pods": curl("10.85.0.1"),
	} {
		if !strings.HasPrefix(said, answer) {
			t.Errorf("%s: %s", how, said)
		}
	}
	// What decides is what has just happened.
	coracle := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(testkit.Bin(t, "coracle"),
			append(args, "--root", root, "--state", filepath.Join(dir, "state"))...).CombinedOutput()
		if err != nil {
			t.Errorf("coracle %s: %v", strings.Join(args, " "), err)
		}
		return string(out)
	}
	visitor := "pod/" + kubectl("get", "pods", "-l", "app=visitor", "-o", "jsonpath={.items[0].metadata.name}")
	for _, tc := range []struct{ from, to, by string }{
		{visitor, "web", ":80/TCP: reached\n  cluster address of Service default/web\n"},
		{
			"198.51.100.7", node + ":30080",
			":30080/TCP: reached\n  node port of Service default/web; the endpoint sees the node's address as the source\n",
		},
	} {
		said := coracle("why", tc.from, tc.to)
		// ready pods become endpoints a moment later
		for end := time.Now().Add(patience); strings.Contains(said, "not used: ") && time.Now().Before(end); {
			said = coracle("why", tc.from, tc.to)
		}
		if !strings.Contains(said, tc.by) || strings.Count(said, "\n  endpoint 10.85.") != 2 || strings.Count(said, ", pod default/web-") != 2 {
			t.Errorf("why %s %s:\n%s", tc.from, tc.to, said)
		}
	}
	// The node's own addresses are for it and its pods.
	for own, endpoint := range map[string]string{
		"10.96.0.1:443": "  endpoint 10.96.0.1:6443, node boat itself\n",
		"10.96.0.10:53": "  no Service: 10.96.0.10:53, node boat itself\n",
	} {
		for from, by := range map[string]string{
			visitor:        ": reached\n",
			"198.51.100.7": ": dropped: only the node and its pods reach this address\n",
		} {
			if said := coracle("why", from, own); !strings.Contains(said, "\nto    node boat (") || !strings.Contains(said, by) ||
				!strings.Contains(said, endpoint) {
				t.Errorf("why %s %s:\n%s", from, own, said)
			}
		}
	}
	status := coracle("status")
	for _, part := range []string{"API for pods", "objects not acted on", "DNS", "network policies", "service proxy"} {
		if !strings.Contains(status, "\n"+part+" ") {
			t.Errorf("status has no line for %s:\n%s", part, status)
		}
	}
	const deny = `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "closed"}, "spec": {"podSelector": {"matchLabels": {"app": "web"}}}}`
	policy := filepath.Join(root, "policy.json")
	if err := os.WriteFile(policy, []byte(deny), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl("create", "-f", policy)
	said := ""
	for end := time.Now().Add(patience); !strings.Contains(said, ":80/TCP: denied: policies deny it\n") && time.Now().Before(end); {
		said = coracle("why", visitor, "web")
	}
	if strings.Count(said, "\n    ingress denied: no rule of default/closed allows it\n") != 2 {
		t.Errorf("why with a policy:\n%s", said)
	}
	// The packets say the same: the visitor gets no answer any more, and the node does.
	for end := time.Now().Add(patience); ; {
		out, err := exec.Command(testkit.Bin(t, "tools", "kubectl"), "--kubeconfig", filepath.Join(root, "kubeconfig"),
			"exec", "deployment/visitor", "--", "timeout", "1", "wget", "-q", "-O", "-", "http://web/").CombinedOutput()
		if err != nil && strings.Contains(string(out), "exit code 143") { // timeout has ended it
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the visitor is answered though a policy forbids it: %v, %s", err, out)
		}
	}
	if said := curl(node); !strings.HasPrefix(said, answer) {
		t.Errorf("from the host, with a policy: %s", said)
	}
	kubectl("delete", "-f", policy)
	// up shows both, and it may be repeated.
	for range 2 {
		if strings.Count(out, answer) != 2 || !strings.Contains(out, "$ curl -fsS http://"+node+":30080/\n"+answer) ||
			!strings.Contains(out, "-- wget -q -O - http://web/\n"+answer) {
			t.Errorf("up.sh prints:\n%s", out)
		}
		out = demo("up.sh")
	}
	down()
	demo("down.sh") // nothing is there
}

// giveAddress gives this machine an interface with an address, until the test ends.
func giveAddress(t *testing.T, address string) {
	t.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink0"}, PeerName: "uplink1"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Error(err)
		}
	})
	a, err := netlink.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(link, a); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
}

// Regression: up waited for a Deployment on a node with disk pressure, and did not say why.
func TestUpTellsWhatADeploymentWaitsFor(t *testing.T) {
	c := newCluster(t)
	c.run(t, "down")
	manifest := filepath.Join(filepath.Dir(c.root), "web.yaml")
	if err := os.WriteFile(manifest, []byte(webDeployment("web", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	// No disk is that empty.
	cmd := c.command(append(c.upArgs(), "--eviction-hard", "nodefs.available<99.999%", "--apply", manifest)...)
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said string
	var pressure, pod bool
	for lines := bufio.NewScanner(out); !(pressure && pod) && lines.Scan(); {
		said += lines.Text() + "\n"
		pressure = pressure || strings.Contains(lines.Text(), "… node boat has DiskPressure: ")
		pod = pod || strings.Contains(lines.Text(), "… pod default/web-")
	}
	if !pressure || !pod {
		t.Errorf("while it waits, up prints:\n%s", said)
	}
	status, err := c.command("status").CombinedOutput()
	if err == nil || !strings.Contains(string(status), "node boat has DiskPressure: ") {
		t.Errorf("status: %v, %s", err, status)
	}
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Error(err)
	}
	err = cmd.Wait()
	for _, want := range []string{
		"the cluster runs, but --apply failed", "deployment default/web is not available",
		"\nnode boat has DiskPressure: ", "coracle up --root " + c.root + " --state " + c.state + " --eviction-hard", "\npod default/web-",
	} {
		if err == nil || !strings.Contains(failed.String(), want) {
			t.Errorf("the error is %v, %s, want %q", err, failed.String(), want)
		}
	}
}
