package kube

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
)

// Several ups at the same time all end well, and start one cluster. The directories that an older
// version left open are closed: containers' files are in them.
func TestUpTogether(t *testing.T) {
	c := newCluster(t)
	c.run(t, "down")
	dirs := []string{c.root, c.state, filepath.Join(c.root, "kube", "kubelet")}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	var ups errgroup.Group
	for range 3 {
		ups.Go(func() error {
			if out, err := c.command(c.upArgs()...).CombinedOutput(); err != nil {
				t.Logf("coracle up: %s", out)
				return err
			}
			return nil
		})
	}
	if err := ups.Wait(); err != nil {
		t.Error(err)
	}
	c.kube(t, "get", "nodes")
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: mode %v, %v", dir, info.Mode(), err)
		}
	}
}

// After down, down --purge still removes all that up has made: the end of the test looks for it.
func TestPurgeAfterDown(t *testing.T) {
	c := newCluster(t)
	c.apply(t, webDeployment("web", 1))
	c.await(t, "rollout", "status", "deployment/web")
	const held = "10.96.0.1/32" // the API server's for pods
	has := func() bool {
		addresses, err := net.InterfaceAddrs()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(addresses, func(a net.Addr) bool { return a.String() == held })
	}
	if !has() {
		t.Errorf("the node does not have %s", held)
	}
	c.run(t, "down")
	if has() {
		t.Errorf("down has left %s", held)
	}
	c.run(t, "down")
}

// A port that someone else has is told at once, and nothing is left that goes on trying.
func TestUpTellsWhatIsTaken(t *testing.T) {
	c := newCluster(t)
	c.run(t, "down")
	for address, want := range map[string]string{
		"127.0.0.1:6443": "something listens on 127.0.0.1:6443 already; stop it, or choose another --port",
		":10250":         "another kubelet may run on this machine",
	} {
		taken, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.command(c.upArgs()...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("with %s taken: %v, %s", address, err, out)
		}
		if _, said, _ := strings.Cut(string(out), "coracle: "); strings.Count(said, "\n") != 1 {
			t.Errorf("with %s taken: more than a line: %s", address, out)
		}
		if err := taken.Close(); err != nil {
			t.Fatal(err)
		}
		// If up had started coracled before, that has ended, too.
		if out, err := c.command("status").CombinedOutput(); err == nil || strings.Count(string(out), "it does not run") != 2 {
			t.Errorf("status after that: %v, %s", err, out)
		}
		c.run(t, "down")
	}
}

// A network of Services' addresses that the machine reaches otherwise would be cut off.
func TestUpRefusesANetworkOfOthers(t *testing.T) {
	c := newCluster(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	_, to, err := net.ParseCIDR("10.96.128.0/17")
	if err != nil {
		t.Fatal(err)
	}
	route := &netlink.Route{Dst: to, LinkIndex: lo.Attrs().Index, Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteAdd(route); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.RouteDel(route); err != nil {
			t.Error(err)
		}
	})
	c.up(t) // the cluster runs, and goes on
	c.run(t, "down")
	out, err := c.command(c.upArgs()...).CombinedOutput()
	if want := "the Services' network 10.96.0.0/16 overlaps the route to 10.96.128.0/17 by lo"; err == nil ||
		!strings.Contains(string(out), want) || strings.Contains(string(out), "serves") {
		t.Errorf("up: %v, %s, want %q", err, out, want)
	}
	_, proposed, _ := strings.Cut(string(out), "--service-cidr ")
	proposed = strings.TrimSpace(proposed)
	out, err = c.command(append(c.upArgs(), "--service-cidr", proposed)...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "have addresses of 10.96.0.0/16") {
		t.Errorf("up with the network that was proposed, on the cluster's data: %v, %s", err, out)
	}
	c.run(t, "down", "--purge")
	c.up(t, "--service-cidr", proposed)
	c.await(t, "wait", "--for=create", "service/kubernetes") // the API server makes it when it serves
	if got, want := c.kube(t, "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"),
		netip.MustParsePrefix(proposed).Addr().Next().String(); got != want {
		t.Errorf("with --service-cidr %s the API server's address is %s, want %s", proposed, got, want)
	}
}

// Regression: an up that failed since coracled did not answer ended that coracled, and with it its
// pods.
func TestUpWithAStoppedCoracled(t *testing.T) {
	c := newCluster(t)
	c.apply(t, webDeployment("web", 1))
	c.await(t, "rollout", "status", "deployment/web")
	const started = "jsonpath={.items[0].status.containerStatuses[0].containerID} " +
		"{.items[0].status.containerStatuses[0].state.running.startedAt}"
	before := c.kube(t, "get", "pods", "-l", "app=web", "-o", started)
	pid := c.process(t, "coracled")
	if err := testkit.Halt(pid); err != nil {
		t.Fatal(err)
	}
	out, err := c.command("up", "--timeout", "3s").CombinedOutput() // longer than up waits for one answer
	if cerr := unix.Kill(pid, unix.SIGCONT); cerr != nil {
		t.Fatal(cerr)
	}
	if want := fmt.Sprintf("coracled with pid %d, which ran before, does not answer", pid); err == nil ||
		!strings.Contains(string(out), want) {
		t.Errorf("up: %v, %s, want %q", err, out, want)
	}
	c.up(t)
	if now := c.process(t, "coracled"); now != pid {
		t.Errorf("coracled has pid %d, and had %d", now, pid)
	}
	c.await(t, "rollout", "status", "deployment/web")
	if after := c.kube(t, "get", "pods", "-l", "app=web", "-o", started); after != before {
		t.Errorf("the pod's container is %s, and was %s", after, before)
	}
	c.sameEverywhere(t)
}

// Regression: up with other flags on a cluster that ran ignored them, printed the address that they
// said, and remembered them for the next start.
func TestUpWithOtherFlags(t *testing.T) {
	c := newCluster(t)
	settings := func() string {
		data, err := os.ReadFile(filepath.Join(c.root, "up.json"))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	before := settings()
	out, err := c.command("up", "--port", "7443", "--node-name", "boat").CombinedOutput()
	for _, want := range []string{"up --port 7443: the cluster runs with --port 6443", "'coracle down"} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("another port: %v, want %q: %s", err, want, out)
		}
	}
	if after := settings(); after != before {
		t.Errorf("remembered %s, before %s", after, before)
	}
	// What is not given is as it was; what is printed is the server's.
	if out := c.run(t, "up"); !strings.Contains(out, "https://127.0.0.1:6443") || !strings.Contains(out, "node boat is Ready") {
		t.Errorf("up without flags prints %s", out)
	}
	c.run(t, "down")
	out, err = c.command("up", "--eviction-hard", "nodefs.available<lots").CombinedOutput()
	if err == nil || strings.Contains(string(out), "serves") || !strings.Contains(string(out), `"lots" is no amount`) {
		t.Errorf("a flag that only the cluster process understands: %v, %s", err, out)
	}
	// One that is interrupted when coracled serves ends what it has started, and is not remembered.
	// Without etcd the node never is Ready.
	cmd := c.command("up", "--port", "8443", "--etcd-servers", "http://127.0.0.1:1")
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if lines := bufio.NewScanner(said); !lines.Scan() || !strings.Contains(lines.Text(), "coracled serves") {
		t.Errorf("up has not started coracled: %s, %v", lines.Text(), lines.Err())
	}
	rules := serviceTables{t}
	rules.make(8443) // as the cluster process does
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("an up that is interrupted does not fail")
	}
	if out, err := c.command("status").CombinedOutput(); err == nil || strings.Count(string(out), "it does not run") != 2 {
		t.Errorf("status after an up that failed: %v, %s", err, out)
	}
	if strings.Contains(settings(), `"port": 8443`) {
		t.Errorf("an up that failed is remembered: %s", settings())
	}
	rules.make(6443) // as if the cluster process had been killed, and not brought down
	again := []string{
		"up", "--port", "7443", "--short-name-registry", registry.Addr + "/demo", "--cluster-domain", "boat.example",
		"--cluster-dns", "10.96.0.53", "--dns-stub-domain", "lab.example=192.0.2.53", "--network-policies=false",
	}
	if got := rules.list(); !slices.Equal(got, []string{"coracle-services-6443"}) {
		t.Errorf("an up that failed, and a cluster that was killed, have left %v", got)
	}
	if out := c.run(t, again...); !strings.Contains(out, "https://127.0.0.1:7443") || !strings.Contains(out, "node boat is Ready") {
		t.Errorf("up with another port after down prints %s", out)
	}
	c.kube(t, "get", "node", "boat")
	// It fails, as the Service of the DNS has its old address.
	if out, _ := c.command("status").CombinedOutput(); !strings.Contains(string(out), "off (--network-policies=false)") ||
		!strings.Contains(settings(), `"networkPoliciesOff": true`) {
		t.Errorf("status does not tell that network policies are off: %s, remembered %s", out, settings())
	}
	warned, err := c.tryKube(wall, "create", "-f", "-")
	if err != nil || !strings.Contains(warned,
		`Warning: NetworkPolicy "wall" is stored but not acted on by this cluster: with --network-policies=false`) {
		t.Errorf("a policy that nothing enforces: %v, %s", err, warned)
	}
	for deadline := time.Now().Add(patience); !strings.Contains(c.kube(t, "events", "--for", "networkpolicy/wall"), "NotActedOn"); {
		if time.Now().After(deadline) {
			t.Fatal("a policy that nothing enforces has no Event")
		}
	}
	// A name without a registry, as in kubectl run n --image=nginx, is the setting's.
	c.kube(t, "run", "n", "--image", "web:1")
	c.await(t, "wait", "--for=condition=Ready", "pod/n")
	if got := c.kube(t, "exec", "n", "--", "cat", "/etc/resolv.conf"); !strings.Contains(got, "nameserver 10.96.0.53\n") ||
		!strings.Contains(got, "svc.boat.example") {
		t.Errorf("the flags of the DNS give pods %s", got)
	}
	if got := rules.list(); !slices.Equal(got, []string{"coracle-services-7443"}) {
		t.Errorf("up with another port has left %v", got)
	}
	c.kube(t, "delete", "pod", "n", "--now")
	// A manifest that cannot be applied ends nothing.
	none := filepath.Join(c.root, "none.yaml")
	out, err = c.command("up", "--apply", none).CombinedOutput()
	if want := "the cluster runs, but --apply failed: 'coracle up --root " + c.root; err == nil || !strings.Contains(string(out), want) {
		t.Errorf("a manifest that is not there: %v, %s, want %q", err, out, want)
	}
	// The Service of the DNS has the former address. Without one, it is made again with the new
	// address.
	if out, err := c.command("status").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "has the address 10.96.0.10, not 10.96.0.53") {
		t.Errorf("status of a cluster without DNS: %v, %s", err, out)
	}
	c.kube(t, "delete", "service", "kube-dns", "--namespace", "kube-system")
	for deadline := time.Now().Add(patience); ; {
		out, err := c.command("status").CombinedOutput()
		if err == nil && strings.Contains(string(out), "answers at [10.96.0.53]") &&
			strings.Contains(string(out), "reach the API server at 10.96.0.1:443") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the DNS does not come back: %v, %s", err, out)
		}
	}
}

// wall is a policy.
const wall = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: wall}, spec: {podSelector: {}}}`

// serviceTables are the nftables tables with the rules of Services on this machine.
type serviceTables struct{ t *testing.T }

func (s serviceTables) make(port int) {
	c, err := nftables.New()
	if err == nil {
		c.AddTable(&nftables.Table{Name: fmt.Sprintf("coracle-services-%d", port), Family: nftables.TableFamilyINet})
		err = c.Flush()
	}
	if err != nil {
		s.t.Error(err)
	}
}

func (s serviceTables) list() (names []string) {
	c, err := nftables.New()
	if err != nil {
		s.t.Error(err)
		return nil
	}
	all, err := c.ListTables()
	if err != nil {
		s.t.Error(err)
	}
	for _, t := range all {
		if strings.HasPrefix(t.Name, "coracle-services-") {
			names = append(names, t.Name)
		}
	}
	return names
}
