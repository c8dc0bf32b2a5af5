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
	fmt.Printf("%s from %s; hidden mounts: %d\n", said[:n], conn.LocalAddr(), strings.Count(string(mounts), "/hidden/"))
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
func call(t *testing.T, w Network, n, family int) string {
	t.Helper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(w.Address(1)[family], 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if conn, err := l.Accept(); err == nil {
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
	return string(said)
}

// TestExecOnNode is what call starts; by itself it finds that a node that was not made cannot be
// entered.
func TestExecOnNode(t *testing.T) {
	w := Network{Dir: os.Getenv("DIR")}
	if w.Dir == "" {
		w.Dir = t.TempDir()
		if err := w.Exec(2, "/bin/true", nil, nil); !errors.Is(err, ErrNotMade) {
			t.Errorf("Exec on a node that was not made: %v", err)
		}
		return
	}
	var n int
	if _, err := fmt.Sscan(os.Getenv("N"), &n); err != nil {
		t.Fatal(err)
	}
	t.Fatal(w.Exec(n, "/proc/self/exe", []string{"node", os.Getenv("AT")}, []string{stage + "=" + onNode}))
}

// Nodes reach this machine in both families, with their own addresses, and do not have the mounts
// of its pods.
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
				strings.TrimSuffix(want, "0")) || !strings.Contains(said, "hidden mounts: 0") {
				t.Errorf("on node %d: %s, want %s", n, said, want)
			}
		}
	}
	if w.Has(4) {
		t.Error("node 4 is there")
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
