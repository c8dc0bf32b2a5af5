package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/network/cni"
)

// insideEnv marks the process that runs the tests, in namespaces of its own: its
// network namespace is "the host" there, and the real host sees nothing.
const insideEnv = "CORACLE_NETWORK_TEST_INSIDE"

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces: run them as root")
		os.Exit(1)
	}
	if os.Getenv(insideEnv) == "" {
		os.Exit(runInside())
	}
	if err := loopbackUp(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func runInside() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	// Pdeathsig is sent when the thread ends that started the child.
	runtime.LockOSThread()
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

var quiet = slog.New(slog.DiscardHandler)

// testConfig is a Manager's settings in a test: nothing of the real host's.
func testConfig(t testing.TB) Config {
	t.Helper()
	dir := t.TempDir()
	return Config{
		StateDir: filepath.Join(dir, "state"), CNIConfDir: filepath.Join(dir, "net.d"),
		CNIBinDirs: []string{filepath.Join(dir, "bin")}, Log: quiet,
	}
}

// managers are the last ones started, by their state directory.
var managers = map[string]*Manager{}

// started returns a running Manager. The test's end tears all down and checks that
// nothing is left on "the host".
func started(t testing.TB, c Config) *Manager {
	t.Helper()
	return startedOf(t, c, New(c))
}

// startedOf is started of a Manager that was made before.
func startedOf(t testing.TB, c Config, m *Manager) *Manager {
	t.Helper()
	if before := managers[c.StateDir]; before != nil {
		before.builtin.holds.close() // it counts as killed, and the kernel closes sockets then
		before.builtin.tableWatch.close()
	}
	managers[c.StateDir] = m
	m.cni.wait, m.cni.asks = patience, cni.NewStatusCalls(patience)
	m.builtin.linger = 0 // most tests keep the namespaces
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := m.Recover(ctx, nil); err != nil {
			t.Error(err)
		}
		awaitLeases(t, m, 0)
		if err := m.Purge(ctx); err != nil {
			t.Error(err)
		}
		_ = m.Close()
		left := hostLinkNames(t)
		for end := time.Now().Add(patience); left != "lo" && time.Now().Before(end); left = hostLinkNames(t) {
			time.Sleep(10 * time.Millisecond) // links go after their namespaces, and nothing tells
		}
		if left != "lo" {
			t.Errorf("links left on the host: %s", left)
		}
		if left := loopbackAddresses(t); len(left) > 0 {
			t.Errorf("addresses left on the host: %v", left)
		}
	})
	return m
}

func hostLinkNames(t testing.TB) string {
	t.Helper()
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // others come or go
		links, err = netlink.LinkList()
	}
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "uplink") {
			continue // of the outside, which ends later
		}
		if l.Type() == "bridge" || l.Type() == "veth" || l.Attrs().Name == "lo" {
			names = append(names, l.Attrs().Name)
		}
	}
	return strings.Join(names, " ")
}

// loopbackAddresses are those of pods' ranges.
func loopbackAddresses(t testing.TB) (all []string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := netlink.AddrList(lo, netlink.FAMILY_ALL)
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		addrs, err = netlink.AddrList(lo, netlink.FAMILY_ALL)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if !a.IP.IsLoopback() {
			all = append(all, a.IPNet.String())
		}
	}
	return all
}

// pins makes the namespaces of all tests.
var pins nspin.Maker

// newNetNS pins a network namespace; ending it may be done early.
func newNetNS(t testing.TB) (path string, end func()) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pod")
	set, err := pins.Create(t.Context(), dir, nspin.Spec{Net: true})
	if err != nil {
		t.Fatal(err)
	}
	end = func() {
		if err := nspin.Remove(context.WithoutCancel(t.Context()), dir); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return set.Net, end
}

// testPod is a connected pod.
type testPod struct {
	Pod
	ips []netip.Addr
}

func connect(t testing.TB, n Network, id string, ports ...PortMapping) testPod {
	t.Helper()
	path, _ := newNetNS(t)
	p := Pod{ID: id, Name: id, Namespace: "default", UID: id, NetNS: path, Ports: ports}
	r, err := n.Setup(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return testPod{p, r.IPs}
}

// within runs f on a thread in the network namespace at path; an empty path is the
// test's host. The thread ends with it.
func within(t testing.TB, path string, f func() error) error {
	t.Helper()
	if path == "" {
		return f()
	}
	ns, err := openNetns(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The first thread cannot end: leave it to wait.
			defer runtime.UnlockOSThread()
			done <- within(t, path, f)
			return
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
