//go:build ha

package controlplanes

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

var trials = flag.Int("trials", 6, "how often a control-plane node is killed")

// trialLimit bounds one trial on average, the node's next start included: some 8 s on two cores.
const trialLimit = 30 * time.Second

// answersWithin is how long the API may be away when a control-plane node dies.
const answersWithin = 2 * time.Second

// downLimit is how long down may take where etcd has no quorum.
const downLimit = 15 * time.Second

// switched makes machines with namespaces of their own, on one link with each other and with the
// test. Their addresses are those of network, which ends with a dot, from 1 on; the test has 254.
func switched(t *testing.T, network string, names ...string) (all []*machine) {
	t.Helper()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "switch"}}
	err := netlink.LinkAdd(bridge)
	if err == nil {
		err = netlink.LinkSetUp(bridge)
	}
	if err == nil {
		err = netlink.AddrAdd(bridge, &netlink.Addr{IPNet: must(netlink.ParseIPNet(network + "254/24"))})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(bridge) })
	for i, name := range names {
		m := newMachine(t, name, network+strconv.Itoa(i+1))
		hold := exec.Command("unshare", "--net", "--mount", "--uts", "sh", "-c", `hostname "$0" && echo ready && exec sleep infinity`, name)
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
		port := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "port" + strconv.Itoa(i), MasterIndex: bridge.Index}, PeerName: "lan0",
			PeerNamespace: netlink.NsPid(m.holder),
		}
		if err := errors.Join(netlink.LinkAdd(port), netlink.LinkSetUp(port)); err != nil {
			t.Fatal(err)
		}
		m.network(t, func(h *netlink.Handle) error { return furnish(h, m.ip) })
		all = append(all, m)
	}
	return all
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// kill ends all processes of the machine with SIGKILL, but the one that holds its namespaces.
func (m *machine) kill() (ended int) { return m.killIf(func(testkit.Process) bool { return true }) }

// killIf kills the machine's processes for which the function returns true.
func (m *machine) killIf(which func(p testkit.Process) bool) (ended int) {
	own := must(os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", m.holder)))
	network := must(os.Readlink(fmt.Sprintf("/proc/%d/ns/net", m.holder)))
	dead := map[int]bool{}
	for { // until none is left: one may start another
		found := 0
		for _, p := range testkit.Processes() {
			if p.PID == m.holder {
				continue
			}
			mnt, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", p.PID))
			n, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.PID))
			if mnt != own && n != network || !which(p) {
				continue
			}
			if unix.Kill(p.PID, unix.SIGKILL) == nil {
				found++
				dead[p.PID] = true
			}
		}
		if found == 0 {
			return len(dead)
		}
	}
}

// programNamed is for the command lines of the programs with that name.
func programNamed(name string) func(words []string) bool {
	return func(words []string) bool { return filepath.Base(words[0]) == name }
}

// pids are the machine's processes with such a command line.
func (m *machine) pids(which func(words []string) bool) (all []int) {
	own := must(os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", m.holder)))
	for _, p := range testkit.Processes() {
		if mnt, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", p.PID)); mnt == own && which(p.Args) {
			all = append(all, p.PID)
		}
	}
	return all
}

// kube is a client that does not wait for long.
func (m *machine) kube(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(m.Root, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.Timeout, config.QPS = 500*time.Millisecond, -1
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

func TestThreeControlPlanes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience+time.Duration(*trials)*trialLimit)
	defer cancel()
	all := switched(t, "198.51.100.", "one", "two", "three", "agent")
	one, two, three, agent := all[0], all[1], all[2], all[3]
	all = all[:3]
	t.Cleanup(func() {
		for _, m := range []*machine{agent, three, two, one} {
			if _, said, err := m.Run("down"); err != nil {
				t.Errorf("%s: down: %v\n%s", m.Name, err, said)
			}
		}
	})
	one.Must(t, append([]string{"up", "--bind-address", one.ip}, one.flags()...)...)
	before := one.kube(t)
	if err := (&writer{kube: map[string]kubernetes.Interface{"one": before}}).write(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	agents := one.Invite(t)
	two.Refused(t, "--certificate-key is missing", "up", "--join", agents.Server, "--token", agents.Token, "--ca-hash", agents.CAHash)
	two.Refused(t, "--token goes with --join", "up", "--token", agents.Token)

	joins := func(m *machine) []string {
		i := one.Invite(t, "--control-plane")
		words := strings.Fields(i.Join)
		if !slices.Contains(words, "--certificate-key") || strings.Join(words[:3], " ") != "coracle up --join" {
			t.Fatalf("token create prints %q", i.Join)
		}
		return append(append(words[1:], "--bind-address", m.ip), m.flags()...)
	}
	command := joins(two)
	wrong := slices.Clone(command)
	wrong[slices.Index(wrong, "--certificate-key")+1] = strings.Repeat("0", 64)
	two.Refused(t, "the certificate key is not the one of token", wrong...)
	two.Refused(t, "its control-plane nodes have to agree", append(slices.Clone(command), "--service-cidr", "10.97.0.0/16")...)
	two.Refused(t, "the cluster has a node one", append(slices.Clone(command), "--node-name", "one")...)
	two.Must(t, command...)
	two.Refused(t, "this machine is a control-plane node of a cluster already", command...)
	three.Must(t, joins(three)...)
	for _, m := range all {
		awaitMembers(t, m, "one", "two", "three")
	}
	awaitServers(ctx, t, one.kube(t), one.ip, two.ip, three.ip)
	for _, name := range []string{"kube-scheduler", "kube-controller-manager"} {
		lease, err := one.kube(t).CoordinationV1().Leases("kube-system").Get(ctx, name, metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != "one" {
			t.Errorf("lease %s: %+v, %v", name, lease, err)
		}
	}
	one.Refused(t, "'coracle leave", "down", "--purge")

	agent.Must(t, append([]string{"join", agents.Server, "--token", agents.Token, "--ca-hash", agents.CAHash}, agent.flags()...)...)
	testkit.Eventually(ctx, t, "the node knows all API servers", func() (bool, error) {
		file := filepath.Join(agent.Root, "kube", "agent", "servers.json")
		data, err := os.ReadFile(file)
		return strings.Count(string(data), ":6443") == 3, err
	})
	loads := newClients(t, all)
	killOneByOne(ctx, t, all, agent, loads)
	killEachKind(ctx, t, all, agent, loads)
	calm := sync.OnceFunc(loads.load()) // clients end also if the test does
	defer calm()
	cutOneOff(ctx, t, all, agent)
	calm()
	loads.check(t)

	// One leaves, and comes again.
	three.Must(t, "leave")
	awaitMembers(t, one, "one", "two")
	if _, err := os.Stat(filepath.Join(three.Root, "kube")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("leave has left the cluster's keys: %v", err)
	}
	three.Must(t, joins(three)...)

	// One is gone for good, and another takes its place.
	three.kill()
	one.Must(t, "node", "remove", "three")
	awaitMembers(t, one, "one", "two")
	one.Refused(t, "the cluster has no node three", "node", "remove", "three")
	if _, err := two.kube(t).CoreV1().Nodes().Get(ctx, "three", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node that was removed: %v", err)
	}
	three.Refused(t, "member of etcd was removed from the cluster", "up", "--timeout", patience.String())
	three.Must(t, "leave", "--force")

	// Of two, none goes on alone while the other one answers.
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	one.Must(t, "snapshot", "save", snapshot)
	two.Must(t, "down")
	two.Refused(t, "and is a quorum together with this one", "up", "--force-new-cluster")
	two.Refused(t, "other control-plane nodes run the cluster: one at", "snapshot", "restore", snapshot)

	// Of two, one is no quorum: status says what to do, and one can go on alone.
	two.kill()
	testkit.Eventually(ctx, t, "status tells that there is no quorum", func() (bool, error) {
		out, _, err := one.Run("status")
		return strings.Contains(out, "no quorum: 1 of 2") && strings.Contains(out, "two at https://"+two.ip+":2380") &&
			strings.Contains(out, "--force-new-cluster"), fmt.Errorf("%w: %s", err, out)
	})
	one.Refused(t, "'coracle status' says what to do", "node", "remove", "two")
	began := time.Now()
	one.Must(t, "down")
	if took := time.Since(began); took > downLimit {
		t.Errorf("down without a quorum took %v", took)
	}
	one.Must(t, "up", "--force-new-cluster", "--timeout", patience.String())
	awaitMembers(t, one, "one")
	if _, err := os.Stat(filepath.Join(one.Root, "kube", "etcd", "peers.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the next start would not be that of a lone member: %v", err)
	}
	if _, err := one.kube(t).CoreV1().ConfigMaps("default").Get(ctx, "write-0", metav1.GetOptions{}); err != nil {
		t.Errorf("what was written first: %v", err)
	}

	// Started again it has no port for members. One that comes back must not go on alone next to it.
	one.Must(t, "down")
	one.Must(t, "up", "--timeout", patience.String())
	two.Refused(t, "runs the cluster without this machine", "up", "--force-new-cluster")
	two.Refused(t, "other control-plane nodes run the cluster: one at", "snapshot", "restore", snapshot)
}

// cutOneOff cuts the API server that a node uses off from the others, but not from the node, which
// goes to another one.
func cutOneOff(ctx context.Context, t *testing.T, all []*machine, agent *machine) {
	t.Helper()
	var cut *machine
	testkit.Eventually(ctx, t, "the node uses an API server", func() (bool, error) {
		cut = agent.serverOf(t, all)
		return cut != nil, nil
	})
	t.Logf("the node uses %s, which is cut off", cut.Name)
	var rest []*machine
	routes := func(change func(*netlink.Handle, *netlink.Route) error) {
		rest = nil
		cut.network(t, func(h *netlink.Handle) error {
			for _, m := range all {
				if m == cut {
					continue
				}
				rest = append(rest, m)
				r := &netlink.Route{Dst: must(netlink.ParseIPNet(m.ip + "/32")), Type: unix.RTN_BLACKHOLE}
				if err := change(h, r); err != nil {
					return err
				}
			}
			return nil
		})
	}
	routes((*netlink.Handle).RouteAdd)
	testkit.Eventually(ctx, t, "the node uses another API server", func() (bool, error) {
		now := agent.serverOf(t, all)
		return now != nil && now != cut, nil
	})
	awaitLease(ctx, t, rest[0].kube(t), agent.Name)
	testkit.Eventually(ctx, t, "status tells that there is no quorum", func() (bool, error) {
		out, _, err := cut.Run("status")
		return strings.Contains(out, "no quorum: 1 of 3"), fmt.Errorf("%w: %s", err, out)
	})
	routes((*netlink.Handle).RouteDel)
	for _, m := range all {
		awaitMembers(t, m, "one", "two", "three")
	}
}

// serverOf returns the machine whose API server this one has a connection to; nil for none.
func (m *machine) serverOf(t *testing.T, all []*machine) *machine {
	t.Helper()
	data := must(os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", m.holder)))
	for line := range strings.Lines(string(data)) { // proc_net_tcp(5): sl local remote st …
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != "01" { // established
			continue
		}
		for _, server := range all {
			ip := net.ParseIP(server.ip).To4()
			if f[2] == fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], 6443) {
				return server
			}
		}
	}
	return nil
}

// awaitLease waits until a node renews its lease, and finds it Ready.
func awaitLease(ctx context.Context, t *testing.T, kube kubernetes.Interface, node string) {
	t.Helper()
	var before time.Time
	testkit.Eventually(ctx, t, "node "+node+" renews its lease", func() (bool, error) {
		lease, err := kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
		if err != nil || lease.Spec.RenewTime == nil {
			return false, err
		}
		if before.IsZero() {
			before = lease.Spec.RenewTime.Time
		}
		return lease.Spec.RenewTime.After(before), nil
	})
	n, err := kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			t.Errorf("node %s is not Ready: %s", node, c.Message)
		}
	}
}

// awaitMembers waits until the machine's etcd has these members, all voters, and a leader.
func awaitMembers(t *testing.T, m *machine, names ...string) {
	t.Helper()
	testkit.Eventually(t.Context(), t, m.Name+" has the members "+strings.Join(names, ", "), func() (bool, error) {
		out, said, err := m.Run("status")
		for line := range strings.Lines(out) {
			rest, ours := strings.CutPrefix(strings.TrimSpace(line), "etcd members")
			if !ours {
				continue
			}
			fields := strings.Fields(rest)
			ok := len(fields) > 0 && fields[0] == "true" && strings.Contains(rest, "(leads)") && !strings.Contains(rest, "no vote") &&
				strings.Count(rest[:strings.Index(rest+"(since", "(since")], ",") == len(names)-1
			for _, name := range names {
				ok = ok && strings.Contains(rest, name)
			}
			return ok, errors.New(line)
		}
		return false, fmt.Errorf("%w: %s%s", err, out, said)
	})
}

// awaitServers waits until these API servers are published.
func awaitServers(ctx context.Context, t *testing.T, kube kubernetes.Interface, ips ...string) {
	t.Helper()
	testkit.Eventually(ctx, t, "the API servers are published", func() (bool, error) {
		list, err := kube.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=kubernetes",
		})
		if err != nil {
			return false, err
		}
		var have []string
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				have = append(have, e.Addresses...)
			}
		}
		slices.Sort(have)
		return slices.Equal(have, ips), fmt.Errorf("%v", have)
	})
}
