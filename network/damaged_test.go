package network

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/internal/testkit/nofiles"
)

// damage lists what can happen to a record.
var damage = map[string]func(t *testing.T, path string){
	"truncated": func(t *testing.T, path string) { t.Helper(); must(t, os.Truncate(path, 20)) },
	"empty":     func(t *testing.T, path string) { t.Helper(); must(t, os.Truncate(path, 0)) },
	"null":      func(t *testing.T, path string) { t.Helper(); must(t, os.WriteFile(path, []byte("null"), 0o600)) },
	"of another pod": func(t *testing.T, path string) {
		t.Helper()
		b, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(path, []byte(strings.Replace(string(b), `"podID":"a"`, `"podID":"b"`, 1)), 0o600))
	},
	"a directory": func(t *testing.T, path string) {
		t.Helper()
		must(t, os.Remove(path))
		must(t, os.Mkdir(path, 0o700))
	},
	"a FIFO": func(t *testing.T, path string) { // no one writes to it
		t.Helper()
		must(t, os.Remove(path))
		must(t, unix.Mkfifo(path, 0o600))
	},
	"missing": func(t *testing.T, path string) { t.Helper(); must(t, os.Remove(path)) },
}

// Regression: a damaged record prevented the daemon from starting, and so affected all pods of the
// node.
func TestDamagedRecord(t *testing.T) {
	local := netip.MustParseAddr("127.0.0.1")
	for name, hurt := range damage {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t)
			// With only four addresses for pods, the test notices a reused one.
			c.Subnets = []netip.Prefix{netip.MustParsePrefix("10.1.2.0/29"), netip.MustParsePrefix("fd00::/64")}
			m := started(t, c)
			gw := m.builtin.pools[0].gateway().String()
			a := connect(t, m, "a", PortMapping{Protocol: "tcp", HostPort: 80, ContainerPort: 8080},
				PortMapping{Protocol: "udp", HostPort: 81, ContainerPort: 8081, HostIP: local})
			b := connect(t, m, "b", PortMapping{Protocol: "tcp", HostPort: 82, ContainerPort: 80})
			serve(t, a.NetNS, "a", "tcp", 8080)
			serve(t, b.NetNS, "b", "tcp", 80)
			before, _ := m.builtin.lease("a")
			path := m.builtin.records.path("a")
			hurt(t, path)

			var log strings.Builder
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
			m = started(t, c)
			must(t, m.Recover(t.Context(), []string{"a", "b"}))
			if !strings.Contains(log.String(), "network record") || !strings.Contains(log.String(), "pod=a") ||
				strings.Contains(log.String(), "pod=b") {
				t.Errorf("log %s", log.String())
			}
			kept, err := os.ReadDir(filepath.Join(c.StateDir, damagedDir))
			if name != "missing" && (err != nil || len(kept) != 1 || kept[0].Name() != "bridge-a.json") {
				t.Errorf("kept %v, %v", kept, err)
			}
			after, _ := m.builtin.lease("a")
			if after.Stage != connected || !slices.Equal(after.IPs, before.IPs) || !sameSet(after.Ports, before.Ports) {
				t.Errorf("lease %+v, want %+v", after, before)
			}
			// The pods keep working, and keep what they have.
			expect(t, "the pod", "", "tcp", local, 80, "a "+gw)
			expect(t, "the other pod", "", "tcp", local, 82, "b "+gw)
			for i := range 3 {
				p := connect(t, m, fmt.Sprint("new", i))
				if slices.ContainsFunc(p.ips, func(ip netip.Addr) bool { return slices.Contains(before.IPs, ip) }) {
					t.Errorf("%v are a's", p.ips)
				}
			}
			late, _ := newNetNS(t)
			if _, err := m.Setup(t.Context(), Pod{ID: "late", NetNS: late, Ports: a.Ports[:1]}); !errors.Is(err, ErrPortInUse) {
				t.Errorf("host port of a: error %v", err)
			}
			if _, err := m.Setup(t.Context(), Pod{ID: "late", NetNS: late}); !errors.Is(err, ErrExhausted) {
				t.Errorf("more pods than addresses: error %v", err)
			}
			// The next start has nothing to report.
			log.Reset()
			m = started(t, c)
			must(t, m.Recover(t.Context(), []string{"a", "b", "new0", "new1", "new2"}))
			if log.Len() > 0 {
				t.Errorf("log of the next start: %s", log.String())
			}
			must(t, m.Teardown(t.Context(), a.Pod))
			must(t, m.Flush(t.Context()))
			if strings.Contains(hostLinkNames(t), before.Link) {
				t.Error("the link is left")
			}
			expectNone(t, "after teardown", "", "tcp", local, 80)
			if ip := connect(t, m, "last").ip4(); ip != a.ip4() {
				t.Errorf("the last address is %s, not %s", ip, a.ip4())
			}
		})
	}
}

func sameSet(a, b []hostPort) bool {
	less := func(x, y hostPort) int { return strings.Compare(x.String(), y.String()) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), less), slices.SortedFunc(slices.Values(b), less))
}

// What belongs to a damaged record is removed if its pod is gone.
func TestDamagedRecordOfNoPod(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	a := connect(t, m, "a")
	must(t, os.Truncate(m.builtin.records.path("a"), 3))
	must(t, os.WriteFile(m.builtin.records.path("never-there"), nil, 0o600))
	m = started(t, c)
	must(t, m.Recover(t.Context(), nil))
	must(t, m.Flush(t.Context()))
	if l := m.Leases(); len(l) > 0 {
		t.Errorf("leases %v", l)
	}
	if left := hostLinkNames(t); strings.Contains(left, vethName("a")) {
		t.Errorf("links %s", left)
	}
	if _, used := m.builtin.pools[0].used[a.ip4()]; used {
		t.Error("its address is taken")
	}
}

// Regression: a record that cannot be read because of a shortage is not damaged, even if the
// shortage lasts. It was replaced, and a record of CNI lost its configuration.
func TestUnreadableRecord(t *testing.T) {
	for name, failures := range map[string]int{"for a moment": 2, "for good": -1} {
		for _, cause := range []error{unix.EIO, unix.EMFILE, unix.ENOMEM} {
			t.Run(name+": "+cause.Error(), func(t *testing.T) {
				c := testConfig(t)
				m := started(t, c)
				a := connect(t, m, "a", PortMapping{Protocol: "tcp", HostPort: 80, ContainerPort: 80})
				connect(t, m, "b")
				before := tree(t, c.StateDir)
				again := New(c)
				left := failures
				again.builtin.records.read = func(path string) ([]byte, error) {
					if left != 0 && path == again.builtin.records.path("a") {
						left--
						return nil, &os.PathError{Op: "read", Path: path, Err: cause}
					}
					return os.ReadFile(path)
				}
				err := again.Start(t.Context())
				defer func() { must(t, again.Close()) }()
				if after := tree(t, c.StateDir); after != before {
					t.Errorf("changed from\n%s\nto\n%s", before, after)
				}
				if failures < 0 {
					if !errors.Is(err, cause) || !strings.Contains(err.Error(), again.builtin.records.path("a")) {
						t.Errorf("start: %v", err)
					}
					return
				}
				must(t, err)
				must(t, again.Recover(t.Context(), []string{"a", "b"}))
				l, ok := again.builtin.lease("a")
				if !ok || !slices.Equal(l.IPs, a.ips) || len(l.Ports) != 1 || len(again.Leases()) != 2 {
					t.Errorf("lease %+v of %v", l, again.Leases())
				}
			})
		}
	}
}

// Regression: a start that could not ask the kernel gave a pod with a damaged record a lease
// without addresses.
func TestDamagedRecordAndNoDescriptors(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	a := connect(t, m, "a")
	h, err := newHostLinks()
	must(t, err)
	defer h.close()
	var (
		l  lease
		ok bool
	)
	nofiles.Run(t, func() { l, ok, err = m.builtin.adopt(h, "a") })
	if ok || !errors.Is(err, unix.EMFILE) {
		t.Errorf("adopted %+v, %t, %v", l, ok, err)
	}
	must(t, os.Truncate(m.builtin.records.path("a"), 0))
	m = started(t, c)
	if l, _ = m.builtin.lease("a"); !slices.Equal(l.IPs, a.ips) {
		t.Errorf("lease %+v, want %v", l, a.ips)
	}
}

// This daemon must not touch a record of a newer daemon.
func TestNewerRecord(t *testing.T) {
	for _, file := range []string{"bridge/a.json", "cni/a.json", "subnets.json"} {
		t.Run(file, func(t *testing.T) {
			c := testConfig(t)
			for name, content := range map[string]string{
				"bridge/damaged.json": "{", "bridge/.atomic-1-1": "left", "cni/damaged.json": "{",
				file: `{"version":2,"podID":["of","another","shape"]}`,
			} {
				path := filepath.Join(c.StateDir, name)
				must(t, os.MkdirAll(filepath.Dir(path), 0o700))
				must(t, os.WriteFile(path, []byte(content), 0o600))
			}
			before := tree(t, c.StateDir)
			if err := New(c).Start(t.Context()); recordfile.Newer(err) == nil || !strings.Contains(err.Error(), filepath.Join(c.StateDir, file)) {
				t.Errorf("error %v", err)
			}
			if after := tree(t, c.StateDir); after != before {
				t.Errorf("changed from\n%s\nto\n%s", before, after)
			}
		})
	}
}

// Fields that a newer daemon added survive a rewrite, and go with the record.
func TestUnknownFieldsAreKept(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "cni"), 0o700))
	path := filepath.Join(dir, "cni", "a.json")
	must(t,
		os.WriteFile(path,
			[]byte(`{"version":1,"podID":"a","stage":"connected","netns":"/run/netns/a","config":{"name":"x"},"later":{"x":[1,2]}}`), 0o600))
	r := newRecords[cniLease](dir, "cni", slog.New(slog.DiscardHandler))
	all, err := r.load()
	must(t, err)
	l, ok := all.records["a"]
	if !ok {
		t.Fatalf("loaded %+v", all)
	}
	l.Stage = removing
	must(t, r.write("a", l))
	b, err := os.ReadFile(path)
	must(t, err)
	if s := string(b); !strings.Contains(s, `"later":{"x":[1,2]}`) || !strings.Contains(s, `"stage":"removing"`) {
		t.Errorf("rewritten as %s", s)
	}
	must(t, r.remove("a"))
	must(t, r.write("a", l)) // another pod with that id
	if b, err = os.ReadFile(path); err != nil || strings.Contains(string(b), "later") {
		t.Errorf("written as %s, %v", b, err)
	}
}

// tree returns the contents of a directory.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		fmt.Fprintf(&all, "%s: %s\n", path, b)
		return err
	}))
	return all.String()
}

// If the file of the ranges that a cluster has assigned is damaged, the bridge's ranges are used.
func TestDamagedSubnets(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	must(t, m.SetPodCIDR(t.Context(), []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}))
	connect(t, m, "a")
	must(t, os.WriteFile(m.subnetsFile(), []byte(`["10.77`), 0o600))
	for range 2 { // the second start finds no file
		m = started(t, c)
		must(t, m.Recover(t.Context(), []string{"a"}))
	}
	if b, err := os.ReadFile(filepath.Join(c.StateDir, damagedDir, "subnets.json")); err != nil || string(b) != `["10.77` {
		t.Errorf("set aside: %q, %v", b, err)
	}
	if ip := connect(t, m, "b").ip4(); ip != netip.MustParseAddr("10.77.1.3") {
		t.Errorf("address %s", ip)
	}
}

// Regression: a pod that may change its network gave itself addresses, including one of another
// pod. When its record was damaged, they became its lease.
func TestDamagedRecordOfGreedyPod(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	a, b := connect(t, m, "a"), connect(t, m, "b")
	pools := m.builtin.pools
	must(t, within(t, a.NetNS, func() error {
		extra := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "extra"}}
		if err := netlink.LinkAdd(extra); err != nil {
			return err
		}
		eth, err := netlink.LinkByName(podIf)
		if err != nil {
			return err
		}
		add := func(link netlink.Link, ip netip.Addr) error {
			return netlink.AddrAdd(link, &netlink.Addr{
				IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())},
				Flags: unix.IFA_F_NODAD,
			})
		}
		err = errors.Join(add(eth, netip.MustParseAddr("192.0.2.1")), add(extra, netip.MustParseAddr("192.0.2.2")))
		for i, ip := range b.ips {
			free := pools[i].next.Next()
			err = errors.Join(err, add(eth, ip), add(eth, free), add(extra, free.Next()))
		}
		return err
	}))
	if len(b.ips) != 2 {
		t.Fatalf("b has %v", b.ips)
	}
	must(t, os.Truncate(m.builtin.records.path("a"), 0))
	m = started(t, c)
	if l, _ := m.builtin.lease("a"); !slices.Equal(l.IPs, a.ips) {
		t.Errorf("lease %v, want %v", l.IPs, a.ips)
	}
	if l, _ := m.builtin.lease("b"); !slices.Equal(l.IPs, b.ips) {
		t.Errorf("the other lease %v, want %v", l.IPs, b.ips)
	}
	// A pod that has taken another pod's addresses for its own keeps those that it was given.
	must(t, within(t, a.NetNS, func() error {
		eth, err := netlink.LinkByName(podIf)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(eth, netlink.FAMILY_ALL)
		for _, addr := range addrs {
			if ip, ok := netip.AddrFromSlice(addr.IP); ok && !slices.Contains(b.ips, ip.Unmap()) {
				err = errors.Join(err, netlink.AddrDel(eth, &addr))
			}
		}
		return err
	}))
	must(t, os.Truncate(m.builtin.records.path("a"), 0))
	m = started(t, c)
	if l, ok := m.builtin.lease("a"); !ok || !slices.Equal(l.IPs, a.ips) {
		t.Errorf("lease %v, want %v, which the host still routes to it", l.IPs, a.ips)
	}
}
