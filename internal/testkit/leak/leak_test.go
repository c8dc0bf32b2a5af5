package leak_test

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/leak"
)

func TestMain(m *testing.M) { os.Exit(testkit.Isolate(m.Run)) }

// Each kind of leftover must be seen, and be gone again after its removal.
func TestSees(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	must(err)
	addr, err := netlink.ParseAddr("192.0.2.77/32")
	must(err)
	route := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(192, 0, 2, 78), Mask: net.CIDRMask(32, 32)}, Type: unix.RTN_UNREACHABLE}
	sleeper := exec.Command("sleep", "60")
	var held *os.File
	for _, tc := range []struct {
		kind      string
		make, end func()
	}{
		{"process", func() { must(sleeper.Start()) }, func() { must(sleeper.Process.Kill()); _ = sleeper.Wait() }},
		{
			"mount", func() { must(unix.Mount("none", dir, "tmpfs", 0, "")) },
			func() { must(unix.Unmount(dir, 0)) },
		},
		{
			"link", func() {
				must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "leaktest0"}}))
			},
			func() {
				must(netlink.LinkDel(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "leaktest0"}}))
			},
		},
		{
			"route", func() { must(netlink.RouteAdd(route)) },
			func() { must(netlink.RouteDel(route)) },
		},
		{
			"address", func() { must(netlink.AddrAdd(lo, addr)) },
			func() { must(netlink.AddrDel(lo, addr)) },
		},
		{
			"file", func() { must(os.WriteFile(filepath.Join(dir, "x"), nil, 0o600)) },
			func() { must(os.Remove(filepath.Join(dir, "x"))) },
		},
		{
			"descriptor", func() {
				var err error
				held, err = os.Open("/proc/self/ns/net")
				must(err)
			},
			func() { must(held.Close()) },
		},
	} {
		t.Run(tc.kind, func(t *testing.T) {
			before, err := leak.Take(leak.Scope{Dirs: []string{dir}, PIDs: func() []int { return []int{os.Getpid()} }})
			must(err)
			tc.make()
			left, err := before.Left()
			tc.end()
			must(err)
			if !slices.ContainsFunc(left, func(s string) bool { return strings.HasPrefix(s, tc.kind+" ") }) {
				t.Errorf("left = %q, no %s", left, tc.kind)
			}
			before.Check(t)
		})
	}
}

func TestCgroup(t *testing.T) {
	const name = "coracle-leaktest"
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	dir := "/sys/fs/cgroup/" + name // v2 at the top
	if len(hierarchies) > 0 {
		dir = filepath.Join(filepath.Dir(hierarchies[0]), name)
	}
	before, err := leak.Take(leak.Scope{Cgroups: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	left, err := before.Left()
	if rmErr := os.Remove(dir); rmErr != nil {
		t.Fatal(rmErr)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(left, "cgroup "+dir) {
		t.Errorf("left = %q, want cgroup %s", left, dir)
	}
	before.Check(t)
}

// A process that gives itself another name is the same, whether it passes for a long-lived one
// before or not.
func TestSeesAnotherNameNotAsAnotherProcess(t *testing.T) {
	for name, longLived := range map[string]bool{"of its own": false, "of the daemon": true} {
		t.Run(name, func(t *testing.T) {
			shell := exec.Command("sh", "-c", "read l; echo other >/proc/$$/comm; echo done; read l")
			in, err := shell.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := shell.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := shell.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = in.Close(); _ = shell.Wait() }()
			before, err := leak.Take(leak.Scope{PIDs: func() []int {
				if !longLived {
					return nil
				}
				longLived = false
				return []int{shell.Process.Pid}
			}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := in.Write([]byte("\n")); err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			left, err := before.Left()
			if err != nil || len(left) > 0 {
				t.Errorf("left = %q, %v, want nothing", left, err)
			}
		})
	}
}
