package nodes

import (
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

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
)

// In the environment, stage marks the process that runs the tests, in namespaces of its own, and
// one that Exec has started on a node.
const (
	stage    = "CORACLE_NODES_TEST"
	inTests  = "tests"
	onNode   = "node"
	greeting = "hello from this machine"
)

func TestMain(m *testing.M) {
	switch os.Getenv(stage) {
	case inTests:
		goleak.VerifyTestMain(m)
	case onNode:
		os.Exit(callHome())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), stage+"="+inTests)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the death signal is sent when the thread ends that has started the child
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// callHome prints what the first node says at the address that is given.
func callHome() int {
	conn, err := net.DialTimeout("tcp", os.Args[1], time.Minute)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer conn.Close()
	said := make([]byte, len(greeting))
	n, err := conn.Read(said)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	names, _ := os.ReadFile(resolvConf) // a machine may have none
	hidden := strings.Count(string(mounts), "/hidden/")
	host, err := os.Hostname()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("%s from %s; hidden mounts: %d; host name: %s; name servers: %q\n", said[:n], conn.LocalAddr(), hidden, host, names)
	return 0
}

func newNetwork(t *testing.T) Network {
	t.Helper()
	w := Network{
		Cluster: 6443, Dir: filepath.Join(t.TempDir(), "ns"),
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.84.0.0/24"), netip.MustParsePrefix("fd84::/64")},
	}
	if err := os.WriteFile(forwarding, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Remove(); err != nil {
			t.Error(err)
		}
		if w.Exists() {
			t.Error("Remove has left something")
		}
	})
	return w
}

// call has a program on a node ask this machine at its address of a family, and returns its answer.
func call(t *testing.T, w Network, n, family int) (said string) {
	t.Helper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(w.Address(1)[family], 0).String())
	if err != nil {
		t.Fatal(err)
	}
	said, _ = callAt(t, w, n, l)
	return said
}

// callAt has a program on a node ask l, and returns the answer and the address that asked.
func callAt(t *testing.T, w Network, n int, l net.Listener) (answer string, from netip.Addr) {
	t.Helper()
	defer l.Close()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if conn, err := l.Accept(); err == nil {
			from = conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
			_, _ = conn.Write([]byte(greeting))
			_ = conn.Close()
		}
	}()
	// Exec ends the process that calls it: a child of this one does.
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestExecOnNode$", "-test.v")
	cmd.Env = append(os.Environ(), "DIR="+w.Dir, fmt.Sprint("N=", n), "AT="+l.Addr().String())
	said, err := cmd.CombinedOutput()
	if err != nil {
		_ = l.Close()
		t.Errorf("on node %d: %v: %s", n, err, said)
	}
	_ = l.Close()
	<-answered
	return string(said), from
}

// anotherMachine listens at the far addresses, in a namespace that has no route to the nodes.
func anotherMachine(t *testing.T, near, far []netip.Prefix) (listeners []net.Listener) {
	t.Helper()
	tid, connected := make(chan int), make(chan struct{})
	listening := make(chan error, 1)
	go func() {
		listening <- ownthread.Run(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			tid <- unix.Gettid()
			<-connected
			l, err := netlink.LinkByName("far")
			if err == nil {
				err = addresses(l, far)
			}
			for _, p := range far {
				listener, lerr := net.Listen("tcp", netip.AddrPortFrom(p.Addr(), 0).String())
				listeners, err = append(listeners, listener), errors.Join(err, lerr)
			}
			return err
		})
	}()
	select {
	case err := <-listening:
		t.Fatal(err)
	case id := <-tid:
		space, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", id))
		if err != nil {
			t.Fatal(err)
		}
		defer space.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "near"
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "far", PeerNamespace: netlink.NsFd(int(space.Fd()))}
		err = netlink.LinkAdd(veth)
		if err == nil {
			err = addresses(veth, near)
		}
		close(connected)
		if err := errors.Join(err, <-listening); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = netlink.LinkDel(veth) })
	}
	return listeners
}

func addresses(l netlink.Link, all []netip.Prefix) error {
	err := netlink.LinkSetUp(l)
	for _, p := range all {
		addr := &netlink.Addr{IPNet: ipNet(p.Addr(), p.Bits()), Flags: unix.IFA_F_NODAD}
		err = errors.Join(err, netlink.AddrAdd(l, addr))
	}
	return err
}

// Nodes reach other machines in both families, with this machine's address. Regression: they did
// over IPv4 only.
func TestWayOut(t *testing.T) {
	w := newNetwork(t)
	if err := w.Make(2); err != nil {
		t.Fatal(err)
	}
	// coracled turns this on for pods.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	near := []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}
	far := []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("2001:db8::2/64")}
	for i, l := range anotherMachine(t, near, far) {
		if said, from := callAt(t, w, 2, l); !strings.Contains(said, greeting) || from != near[i].Addr() {
			t.Errorf("the node reaches %s from %v: %q; want from %s", far[i].Addr(), from, said, near[i].Addr())
		}
	}
	if err := w.Remove(); err != nil {
		t.Fatal(err)
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	if left, err := c.ListTablesOfFamily(nftables.TableFamilyIPv6); err != nil || len(left) > 0 {
		t.Errorf("Remove has left %v, %v", left, err)
	}
}

// Regression: the table of IPv6 stayed when the nodes' networks were others, without IPv6.
func TestNetworksThatLoseIPv6(t *testing.T) {
	w := newNetwork(t)
	for _, networks := range [][]netip.Prefix{w.Prefixes, w.Prefixes, w.Prefixes[:1], w.Prefixes} {
		w.Prefixes = networks
		if err := w.Make(1); err != nil {
			t.Fatal(err)
		}
		c, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		tables, err := c.ListTablesOfFamily(nftables.TableFamilyIPv6)
		if err != nil || len(tables) != len(networks)-1 {
			t.Errorf("with %v: tables of IPv6 %v, %v", networks, tables, err)
		}
	}
}

// A node uses the name servers of systemd-resolved where this machine has its stub, which listens
// on this machine's loopback, also after resolved has replaced its file.
func TestResolver(t *testing.T) {
	const stub, network = "nameserver 127.0.0.53\noptions edns0\n", "nameserver 192.0.2.53\n"
	for name, tc := range map[string]struct {
		standard, resolved string
		node               string
		unreachable        bool
	}{
		"systemd-resolved":      {stub, network, network, false},
		"a stub of another":     {stub, "", stub, true},
		"a stub without others": {stub, stub, stub, true},
		"a server elsewhere":    {stub + network, "nameserver 192.0.2.54\n", stub + network, false},
		"no servers":            {"search example.com\n", network, "search example.com\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newNetwork(t)
			if err := unix.Mount("none", "/run", "tmpfs", 0, ""); err != nil { // of this test's own namespace
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount("/run", unix.MNT_DETACH) })
			standard := filepath.Join(t.TempDir(), "resolv.conf")
			if err := errors.Join(os.MkdirAll(filepath.Dir(resolved), 0o755), os.WriteFile(standard, []byte(tc.standard), 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(standard, resolvConf, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(resolvConf, unix.MNT_DETACH) })
			write := func(content string) {
				if err := os.WriteFile(resolved+".new", []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(resolved+".new", resolved); err != nil {
					t.Fatal(err)
				}
			}
			if tc.resolved != "" {
				write(tc.resolved)
			}
			if got := len(Unreachable()) > 0; got != tc.unreachable {
				t.Errorf("the name servers are unreachable: %t", got)
			}
			if err := w.Make(2); err != nil {
				t.Fatal(err)
			}
			if said := call(t, w, 2, 0); !strings.Contains(said, fmt.Sprintf("name servers: %q", tc.node)) {
				t.Errorf("on the node: %s, want %q", said, tc.node)
			}
			if tc.node != network {
				return
			}
			const later = "nameserver 192.0.2.55\n"
			write(later)
			if said := call(t, w, 2, 0); !strings.Contains(said, fmt.Sprintf("name servers: %q", later)) {
				t.Errorf("on the node, after a change: %s, want %q", said, later)
			}
			if data, err := os.ReadFile(resolvConf); err != nil || string(data) != tc.standard {
				t.Errorf("this machine has %q, %v", data, err)
			}
		})
	}
}

// TestExecOnNode is what call starts; by itself it finds that a node that was not made cannot be
// entered.
func TestExecOnNode(t *testing.T) {
	w := Network{Dir: os.Getenv("DIR")}
	if w.Dir == "" {
		w.Dir = t.TempDir()
		if err := w.Exec(2, "node-2", "/bin/true", nil, nil); !errors.Is(err, ErrNotMade) {
			t.Errorf("Exec on a node that was not made: %v", err)
		}
		return
	}
	var n int
	if _, err := fmt.Sscan(os.Getenv("N"), &n); err != nil {
		t.Fatal(err)
	}
	t.Fatal(w.Exec(n, fmt.Sprint("node-", n), "/proc/self/exe", []string{"node", os.Getenv("AT")}, []string{stage + "=" + onNode}))
}

// Nodes reach this machine in both families, with their own addresses and host names, and do not
// have the mounts of its pods.
func TestNodes(t *testing.T) {
	w := newNetwork(t)
	hidden := filepath.Join(t.TempDir(), "hidden")
	pod := filepath.Join(hidden, "pod")
	if err := os.MkdirAll(pod, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", pod, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(pod, unix.MNT_DETACH) })
	if err := w.Make(3, hidden); err != nil {
		t.Fatal(err)
	}
	for n := 2; n <= 3; n++ {
		for family, address := range w.Address(n) {
			if said, want := call(t, w, n, family), greeting+" from "+netip.AddrPortFrom(address, 0).String(); !strings.Contains(said,
				strings.TrimSuffix(want, "0")) || !strings.Contains(said, fmt.Sprintf("hidden mounts: 0; host name: node-%d;", n)) {
				t.Errorf("on node %d: %s, want %s, no hidden mounts and the node's name", n, said, want)
			}
		}
	}
	if w.Has(4) {
		t.Error("node 4 is there")
	}
}

// Regression: a node did not reach a pod of its own through a node port of the machine, where
// bridges pass their packets to nftables.
func TestBackToTheSameNode(t *testing.T) {
	w := newNetwork(t)
	if err := w.Make(2); err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName(w.Link(2))
	if err != nil {
		t.Fatal(err)
	}
	port, err := netlink.LinkGetProtinfo(link)
	if err != nil {
		t.Fatal(err)
	}
	if !port.Hairpin {
		t.Errorf("the bridge does not send packets back to the link that they came from: %+v", port)
	}
}

// A Make that was killed at any point is continued by the next one. Remove leaves forwarding and
// its guard. Regression: it turned forwarding off, which others may need.
func TestMakeContinues(t *testing.T) {
	for name, spoil := range map[string]func(w Network) error{
		"nothing is missing": func(Network) error { return nil },
		"no mount namespace": func(w Network) error { return unix.Unmount(w.file(2, "mnt"), unix.MNT_DETACH) },
		"no namespaces":      func(w Network) error { return w.unpin() },
		"files without namespaces": func(w Network) error {
			return errors.Join(unix.Unmount(w.file(2, "mnt"), unix.MNT_DETACH), unix.Unmount(w.file(2, "net"), unix.MNT_DETACH))
		},
		"mounts are passed on": func(w Network) error {
			return errors.Join(w.unpin(), os.MkdirAll(w.Dir, 0o700), unix.Mount(w.Dir, w.Dir, "", unix.MS_BIND, ""),
				unix.Mount("", w.Dir, "", unix.MS_SHARED, ""))
		},
		"no link": func(w Network) error {
			return netlink.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: w.Link(2)}})
		},
		"the link is not connected": func(w Network) error {
			l, err := netlink.LinkByName(w.Link(2))
			return errors.Join(err, netlink.LinkSetNoMaster(l), netlink.LinkSetDown(l))
		},
		"no bridge": func(w Network) error {
			l, err := netlink.LinkByName(w.Bridge())
			return errors.Join(err, netlink.LinkDel(l))
		},
		"no table": func(w Network) error { return w.translateNothing() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newNetwork(t)
			if err := w.Make(2); err != nil {
				t.Fatal(err)
			}
			if err := spoil(w); err != nil {
				t.Fatal(err)
			}
			if err := w.Make(2); err != nil {
				t.Fatal(err)
			}
			if said := call(t, w, 2, 0); !strings.Contains(said, greeting) {
				t.Errorf("on the node: %s", said)
			}
			forwards, err := os.ReadFile(forwarding)
			if err != nil || strings.TrimSpace(string(forwards)) != "1" {
				t.Errorf("the machine forwards: %s, %v", forwards, err)
			}
			if err := w.Remove(); err != nil {
				t.Fatal(err)
			}
			forwards, err = os.ReadFile(forwarding)
			if err != nil || strings.TrimSpace(string(forwards)) != "1" {
				t.Errorf("after Remove the machine forwards: %s, %v; others may need it by now", forwards, err)
			}
			c, err := nftables.New()
			if err != nil {
				t.Fatal(err)
			}
			chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
			if err != nil || len(chains) != 1 || chains[0].Name != guard || chains[0].Table.Name != w.table().Name {
				t.Errorf("after Remove there are the chains %v, %v, want the one that keeps networks apart", chains, err)
			}
		})
	}
}

// On machines with systemd-resolved, /etc/resolv.conf is a symbolic link. Regression: a pipe in the
// place of resolved's file kept up waiting.
func TestResolverBehindALink(t *testing.T) {
	w := newNetwork(t)
	for _, dir := range []string{"/run", "/etc"} { // of this test's own namespace
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	const link = "../run/systemd/resolve/stub-resolv.conf"
	stub, servers := filepath.Join(filepath.Dir(resolvConf), link), "nameserver 192.0.2.53\n"
	if err := errors.Join(os.MkdirAll(filepath.Dir(resolved), 0o755), os.Symlink(link, resolvConf),
		os.WriteFile(stub, []byte("nameserver 127.0.0.53\n"), 0o644), unix.Mkfifo(resolved, 0o644)); err != nil {
		t.Fatal(err)
	}
	if lost := Unreachable(); len(lost) != 1 {
		t.Errorf("next to a pipe, %v are unreachable", lost)
	}
	if err := errors.Join(os.Remove(resolved), os.WriteFile(resolved, []byte(servers), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := w.Make(2); err != nil {
		t.Fatal(err)
	}
	if said := call(t, w, 2, 0); !strings.Contains(said, fmt.Sprintf("name servers: %q", servers)) {
		t.Errorf("on the node: %s, want %q", said, servers)
	}
	if to, err := os.Readlink(resolvConf); err != nil || to != link {
		t.Errorf("this machine has a link to %q, %v", to, err)
	}
}
