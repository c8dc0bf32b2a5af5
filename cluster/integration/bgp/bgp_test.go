//go:build bgp

// Package bgp tests coracle-bgp, under its supervisor, with BIRD, a router, in network namespaces.
package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/bgp/routes"
	"github.com/coracle-project/coracle/cluster/integration/isolate"
	"github.com/coracle-project/coracle/cluster/integration/router"
	"github.com/coracle-project/coracle/cluster/pki"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

func TestMain(m *testing.M) { os.Exit(isolate.Run(m.Run)) }

const (
	nodeAS, routerAS = 64512, 64500
	routerPeer       = "as=64500"
	pods4, pods6     = "10.85.1.0/24", "fd85:0:0:1::/64"
	balancer4        = "203.0.113.1/32"
	balancer6        = "2001:db8:99::1/128"
	// fromRouter is what BIRD announces to the node.
	fromRouter = "198.51.100.0/24"
)

// world is a node with coracle-bgp, and a router next to it.
type world struct {
	*testnet.Node
	t   *testing.T
	dir string // of the node's program, and of the test's files
	// kernel says what the router's kernel does with routes, bird what the router does, node what
	// coracle-bgp logs.
	kernel, bird, node *router.Lines
	supervisor         *exec.Cmd
}

func bin(name string) string {
	dir := os.Getenv("CORACLE_BIN")
	if dir == "" {
		dir = "../../../bin"
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		panic(err)
	}
	return path
}

// newWorld has a router that expects a node with an AS and a password, and announces more networks
// to it.
func newWorld(t *testing.T, as int, password string, more ...string) *world {
	t.Helper()
	w := &world{t: t, Node: testnet.New(t), dir: t.TempDir()}
	_, w.kernel = router.Start(t, w.Outside, "ip", "monitor", "route")
	secret := ""
	if password != "" {
		secret = fmt.Sprintf("password %q;", password)
	}
	config := filepath.Join(w.dir, "bird.conf")
	w.write(config, fmt.Sprintf(`
router id %[1]s;
log stderr all;
debug protocols { states, events };
protocol device {}
protocol kernel { ipv4 { export where source = RTS_BGP; }; }
protocol kernel { ipv6 { export all; }; }
protocol static { ipv4; route %[2]s blackhole; }
protocol bgp node {
  local %[1]s as %[3]d;
  neighbor %[4]s as %[5]d;
  %[6]s
  ipv4 { import all; export where source = RTS_STATIC; };
  ipv6 { import all; export none; };
}`, testnet.Outside4, strings.Join(append(more, fromRouter), " blackhole; route "), routerAS, testnet.Node4, as, secret))
	_, w.bird = router.Start(t, w.Outside, "bird", "-f", "-c", config, "-s", filepath.Join(w.dir, "bird.ctl"))
	return w
}

func (w *world) write(path, content string) {
	w.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) bgp() string { return filepath.Join(w.dir, "bgp") }

// announce says what the node announces, as the cluster's process does.
func (w *world) announce(prefixes ...string) {
	w.t.Helper()
	var all []netip.Prefix
	for _, p := range prefixes {
		all = append(all, netip.MustParsePrefix(p))
	}
	data, err := routes.New([]netip.Addr{w.IPv4, w.IPv6}, all, nil).Encode()
	if err == nil {
		err = os.MkdirAll(w.bgp(), 0o755)
	}
	if err == nil {
		err = pki.Replace(filepath.Join(w.bgp(), routes.File), data, 0o644)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// up starts coracle-bgp under coracle's supervisor, next to a program that only lives.
func (w *world) up(peer, password string) {
	w.t.Helper()
	peer = testnet.Outside4 + " " + peer
	if password != "" {
		file := filepath.Join(w.dir, "password")
		w.write(file, password+"\n")
		peer += " password-file=" + file
	}
	w.supervisor, w.node = router.Start(w.t, &w.Node.Space, bin("coracle"),
		"supervise", "--root", w.dir, "--state", w.dir, "--", "sleep", "infinity",
		"--", bin("coracle-bgp"), "--dir", w.bgp(), "--as", strconv.Itoa(nodeAS), "--peer", peer)
}

// pid is coracle-bgp's.
func (w *world) pid() int {
	w.t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", w.supervisor.Process.Pid))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, task := range tasks {
		children, err := os.ReadFile(task)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			w.t.Fatal(err)
		}
		for _, child := range strings.Fields(string(children)) {
			if name, err := os.ReadFile("/proc/" + child + "/comm"); err == nil && string(name) == "coracle-bgp\n" {
				pid, err := strconv.Atoi(child)
				if err != nil {
					w.t.Fatal(err)
				}
				return pid
			}
		}
	}
	w.t.Fatal("coracle-bgp does not run")
	return 0
}

func (w *world) nextHop(prefix string) string {
	if netip.MustParsePrefix(prefix).Addr().Is4() {
		return testnet.Node4
	}
	return testnet.Node6
}

// come awaits routes in the router's kernel, and no end of others.
func (w *world) come(prefixes ...string) {
	w.t.Helper()
	for len(prefixes) > 0 {
		line := w.kernel.Await(w.t, "proto bird")
		if strings.HasPrefix(line, "Deleted ") {
			w.t.Fatalf("a route is withdrawn: %s", line)
		}
		prefixes = slices.DeleteFunc(prefixes, func(p string) bool {
			return strings.HasPrefix(line, shown(p)+" via "+w.nextHop(p)+" ")
		})
	}
}

// leave awaits that routes have left the router's kernel.
func (w *world) leave(prefixes ...string) {
	w.t.Helper()
	for len(prefixes) > 0 {
		line := w.kernel.Await(w.t, "Deleted ", "proto bird")
		prefixes = slices.DeleteFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, "Deleted "+shown(p)+" ") })
	}
}

// shown is a network as ip writes it.
func shown(prefix string) string {
	p := netip.MustParsePrefix(prefix)
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// end ends the supervisor, as coracle down does.
func (w *world) end() {
	w.t.Helper()
	if err := w.supervisor.Process.Signal(unix.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	if err := w.supervisor.Wait(); err != nil {
		w.t.Fatal(err)
	}
}

func TestRoutes(t *testing.T) {
	w := newWorld(t, nodeAS, "secret")
	w.up(routerPeer, "secret") // it waits for the cluster's process
	w.announce(pods4, pods6)
	w.node.Await(t, "the session is established")
	w.come(pods4, pods6)

	// A Service whose endpoint comes to the node, and leaves it.
	w.announce(pods4, pods6, balancer4, balancer6)
	w.come(balancer4, balancer6)
	w.announce(pods4, pods6)
	w.leave(balancer4, balancer6)

	t.Run("what the router announces is not installed", func(t *testing.T) {
		if got := w.Run("ip route show " + fromRouter); got != "" {
			t.Errorf("%s", got)
		}
	})
	t.Run("without rights", func(t *testing.T) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.pid()))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"Uid:\t61079\t61079", "Gid:\t61079\t61079", "Groups:\t \n", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1"} {
			if !strings.Contains(string(status), want) {
				t.Errorf("%q is not in %s", want, status)
			}
		}
		if ports := w.Run("ss -Hltun"); ports != "" {
			t.Errorf("something listens: %s", ports)
		}
	})
	t.Run("killed", func(t *testing.T) {
		w.announce(pods4, pods6, balancer4)
		w.come(balancer4)
		if err := unix.Kill(w.pid(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		w.bird.Await(t, "Neighbor graceful restart detected")
		w.bird.Await(t, "Neighbor graceful restart done")
		w.announce(pods4, pods6, balancer4, balancer6)
		w.come(balancer6) // the first change that the router's kernel sees
	})
	t.Run("upgraded", func(t *testing.T) {
		w.write(filepath.Join(w.bgp(), "keep"), "")
		w.end()
		w.bird.Await(t, "Neighbor graceful restart detected")
		w.up(routerPeer, "secret")
		w.bird.Await(t, "Neighbor graceful restart done")
		w.announce(pods4, pods6, balancer4)
		if line := w.kernel.Await(t, "proto bird"); !strings.HasPrefix(line, "Deleted 2001:db8:99::1 ") {
			t.Errorf("the first change that the router's kernel sees is %q", line)
		}
	})
	t.Run("down", func(t *testing.T) {
		w.end()
		w.leave(pods4, pods6, balancer4)
	})
}

// What is wrong is said in one line, and in what coracle status shows.
func TestRefusedSessions(t *testing.T) {
	for name, c := range map[string]struct {
		as           int    // that the router expects of the node
		theirs, ours string // passwords
		peer, reason string
	}{
		"the node's AS":   {nodeAS + 1, "", "", routerPeer, "it refuses the session: it may expect another AS of this node than 64512"},
		"the router's AS": {nodeAS, "", "", "as=64501", "its AS is not 64501"},
		"password":        {nodeAS, "secret", "other", routerPeer, "its password for this node is not that of"},
		"no password":     {nodeAS, "secret", "", routerPeer, "or expects a password"},
		"port":            {nodeAS, "", "", routerPeer + " port=1179", "nothing listens at 192.0.2.9:1179"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.as, c.theirs)
			w.announce(pods4)
			w.up(c.peer, c.ours)
			w.node.Await(t, "no session with the peer", c.reason)
			w.status(c.reason)
		})
	}
}

// A peer that sends more routes than a node has memory for is left alone.
func TestTooManyRoutes(t *testing.T) {
	var many []string
	for k := range 10_000 { // and fromRouter
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, byte(k >> 8), byte(k)}), 32).String())
	}
	w := newWorld(t, nodeAS, "", many...)
	w.announce(pods4)
	w.up(routerPeer, "")
	const reason = "it sends more than 10000 routes of one family"
	w.node.Await(t, "no session with the peer", reason)
	w.status(reason)
}

// status compares what coracle-bgp tells coracle status about the router.
func (w *world) status(want string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), testnet.Patience)
	defer cancel()
	socket := filepath.Join(w.bgp(), "health.sock")
	said, err := exec.CommandContext(ctx, "curl", "-sS", "--unix-socket", socket, "http://bgp/healthz/parts").Output()
	if err != nil || !strings.Contains(string(said), want) || !strings.Contains(string(said), `"component":"BGP peer 192.0.2.9","healthy":false`) {
		w.t.Errorf("%v: %s", err, said)
	}
}
