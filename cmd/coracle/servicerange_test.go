package main

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
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// onOtherMachine runs f on a thread in a network namespace of its own, which ends with it.
func onOtherMachine(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestServiceRangesThatOverlap(t *testing.T) {
	type network struct {
		to    string // "" for an address
		addr  string
		link  string
		kind  int
		proto netlink.RouteProtocol
		table int
		scope netlink.Scope
	}
	for name, test := range map[string]struct {
		has     network
		answers bool
		service string
		want    string // "" for no overlap
	}{
		"nothing":                             {service: "10.96.0.0/16"},
		"a default route":                     {has: network{to: "0.0.0.0/0", link: "tun7"}, service: "10.96.0.0/16"},
		"half of the addresses, as VPNs have": {has: network{to: "0.0.0.0/1", link: "tun7"}, service: "10.96.0.0/16"},
		"another network":                     {has: network{to: "10.97.0.0/16", link: "tun7"}, service: "10.96.0.0/16"},
		"a network in it": {
			has: network{to: "10.96.7.0/24", link: "tun7"}, service: "10.96.0.0/16",
			want: "the route to 10.96.7.0/24 by tun7",
		},
		"a network around it": {
			has: network{to: "10.0.0.0/8", link: "tun7"}, service: "10.96.0.0/16",
			want: "the route to 10.0.0.0/8 by tun7",
		},
		"a network of another table": {
			has: network{to: "10.96.0.0/12", link: "tun7", table: 52}, service: "10.96.0.0/16",
			want: "the route to 10.96.0.0/12 by tun7",
		},
		"a null route": {has: network{to: "10.0.0.0/8", kind: unix.RTN_BLACKHOLE}, service: "10.96.0.0/16"},
		"the range of pods": {
			has: network{to: "10.85.0.0/16", kind: unix.RTN_UNREACHABLE, proto: podRoutes}, service: "10.85.128.0/20",
			want: "the route to 10.85.0.0/16, the range of coracled's pods",
		},
		"an address":         {has: network{addr: "10.96.3.4/24", link: "tun7"}, service: "10.96.0.0/16", want: "address 10.96.3.4/24 of tun7"},
		"an address of IPv6": {has: network{addr: "fd96::4/64", link: "tun7"}, service: "fd96::/112", want: "address fd96::4/64 of tun7"},
		"a service's of lo":  {has: network{addr: "10.96.3.4/32", link: "lo"}, service: "10.96.0.0/16", want: "address 10.96.3.4/32 of lo"},
		"that of a killed process": {
			has: network{addr: "10.96.0.1/32", link: "lo", scope: unix.RT_SCOPE_HOST}, service: "10.96.0.0/16",
		},
		"that of another cluster": {
			has: network{addr: "10.96.0.1/32", link: "lo", scope: unix.RT_SCOPE_HOST}, service: "10.96.0.0/16", answers: true,
			want: "that of another cluster of this machine, whose API server answers at 10.96.0.1:443",
		},
	} {
		t.Run(name, func(t *testing.T) {
			onOtherMachine(t, func() error {
				if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "tun7"}, PeerName: "far"}); err != nil {
					return err
				}
				for _, name := range []string{"lo", "tun7"} {
					link, err := netlink.LinkByName(name)
					if err == nil {
						err = netlink.LinkSetUp(link)
					}
					if err != nil {
						return err
					}
				}
				index := 0
				var link netlink.Link
				if test.has.link != "" {
					var err error
					if link, err = netlink.LinkByName(test.has.link); err != nil {
						return err
					}
					index = link.Attrs().Index
				}
				if test.has.addr != "" {
					a, err := netlink.ParseAddr(test.has.addr)
					if err != nil {
						return err
					}
					a.Scope = int(test.has.scope)
					if err := netlink.AddrAdd(link, a); err != nil {
						return err
					}
				}
				if test.has.to != "" {
					to, err := netlink.ParseIPNet(test.has.to)
					if err != nil {
						return err
					}
					if err := netlink.RouteAdd(&netlink.Route{
						Dst: to, LinkIndex: index, Type: test.has.kind, Protocol: test.has.proto, Table: test.has.table, Scope: scopeOf(index),
					}); err != nil {
						return err
					}
				}
				n, err := readNodeNetwork()
				if err != nil {
					return err
				}
				n.answers = func(netip.AddrPort) bool { return test.answers }
				services := netip.MustParsePrefix(test.service)
				if got := n.overlaps(services); got != test.want {
					t.Errorf("it overlaps %q, want %q", got, test.want)
				}
				// What up proposes can be used.
				if free := n.freeRange(services); n.overlaps(netip.MustParsePrefix(free)) != "" {
					t.Errorf("%s is proposed, and overlaps", free)
				}
				if test.answers {
					return nil // nothing does here
				}
				first := "fd99::/112"
				if services.Addr().Is6() {
					first = "10.199.0.0/16"
				}
				for _, given := range []string{test.service, first + "," + test.service} {
					u := &upRun{place: place{root: t.TempDir()}, o: &upOptions{ServiceCIDR: given}}
					switch err := u.checkServiceRange(); {
					case test.want == "" && err != nil:
						return err
					case test.want != "" && err == nil:
						return errors.New("up takes " + given)
					case err != nil && (!strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "--service-cidr ")):
						t.Errorf("up says %v, want %s and the flag", err, test.want)
					case err != nil && given != test.service && !strings.Contains(err.Error(), "--service-cidr "+first+","):
						t.Errorf("up says %v, want the other network with the flag", err)
					}
					u.supervisor = 1
					if err := u.checkServiceRange(); err != nil {
						return err // a cluster that runs is not disturbed
					}
				}
				return nil
			})
		})
	}
}

func TestServiceNetworks(t *testing.T) {
	const both = "give one network, or one of each family, such as 10.96.0.0/16,fd96:c0ac:1e::/112"
	for text, want := range map[string]string{
		"10.96.0.0/16": "", "fd96::/112": "", "10.96.0.0/16,fd96::/112": "", "fd96::/112,10.96.0.0/16": "",
		"": `--service-cidr "" is no network`, "10.96.0.1/16": "is no network", "10.96.0.0/16,": `--service-cidr "" is no network`,
		"10.96.0.0/16, fd96::/112":          `" fd96::/112" is no network`,
		"10.96.0.0/16,::ffff:10.97.0.0/112": "is no network",
		"10.96.0.0/16,10.97.0.0/16":         both, "fd96::/112,fd97::/112": both, "10.96.0.0/16,fd96::/112,fd97::/112": both,
	} {
		all, err := serviceNetworks(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) ||
			err == nil && len(all) != 1+strings.Count(text, ",") {
			t.Errorf("%q: %v, %v, want %q", text, all, err, want)
		}
	}
}

func TestPodRangesThatOverlap(t *testing.T) {
	onOtherMachine(t, func() error {
		for _, args := range []string{
			"link set lo up", "link add tun7 type veth peer name far", "link set tun7 up", "addr add 10.3.0.4/24 dev tun7",
			"addr add fd03::4/64 dev tun7", "route add 10.4.0.0/16 dev tun7", "route add 10.86.1.0/24 dev tun7 proto 86",
			"route add unreachable 10.86.0.0/24 proto 85", "addr add 10.86.0.1/32 dev lo scope host",
			"link add coracle4-6443 type vxlan id 7 dstport 8472", "addr add 10.86.0.0/32 dev coracle4-6443",
			"addr add fd86:0:0:1::/128 dev coracle4-6443", "link add coraclewg-6443 type veth peer name wgfar",
			"addr add 10.86.0.0/32 dev coraclewg-6443", "route add unreachable 10.86.0.0/16 proto 87", "addr add 10.7.0.1/32 dev lo scope host",
		} {
			if said, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", args, err, said)
			}
		}
		l, err := net.Listen("tcp", "0.0.0.0:443") // anything that listens at all addresses
		if err != nil {
			return err
		}
		defer func() { _ = l.Close() }()
		for pods, want := range map[string]string{
			"": "", "none": "", "10.5.0.0/16": "", "10.86.0.0/16 fd86::/48": "",
			"10.3.0.0/16":           "overlaps address 10.3.0.4/24 of tun7",
			"10.5.0.0/16 fd03::/48": "overlaps address fd03::4/64 of tun7",
			"10.4.7.0/24":           "overlaps the route to 10.4.0.0/16 by tun7",
			"10.7.0.0/16":           "overlaps that of another cluster of this machine, whose API server answers at 10.7.0.1:443",
		} {
			u := &upRun{place: place{root: t.TempDir()}, o: &upOptions{Bind: "192.0.2.1", PodCIDR: strings.Fields(pods)}}
			err := u.checkPodRanges()
			if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%q: %v, want %q", pods, err, want)
			}
			u.o.Bind = "127.0.0.1" // nodes get no ranges
			if err := u.checkPodRanges(); err != nil {
				t.Errorf("%q on loopback: %v", pods, err)
			}
		}
		return nil
	})
}

// Nodes keep ranges of the networks that the cluster had when they joined it.
func TestPodRangesOfDataStay(t *testing.T) {
	p := place{root: t.TempDir()}
	up := func(bind, pods string) error {
		last := remembered(p)
		o := upOptions{Bind: bind, PodCIDR: strings.Fields(pods)}
		o.follow(last, func(flag string) bool { return flag == "bind-address" || flag == "pod-cidr" })
		u := &upRun{place: p, o: &o, last: last}
		var err error
		onOtherMachine(t, func() error { err = u.checkPodRanges(); return nil })
		if err == nil {
			remember(t, p, o)
		}
		return err
	}
	if err := up("192.0.2.1", "10.7.0.0/16"); err != nil { // no node has joined, and the cluster was purged
		t.Fatal(err)
	}
	if err := up("127.0.0.1", "10.8.0.0/16"); err != nil {
		t.Fatal(err)
	}
	if err := up("192.0.2.1", ""); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(p.kubeRoot(), "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		bind, pods string
		refused    bool
	}{
		{bind: "192.0.2.1", pods: "fd85:c0ac:1e00:0::/48 10.85.0.0/16"},
		{bind: "192.0.2.1", pods: "10.86.0.0/16", refused: true},
		{bind: "192.0.2.1", pods: "none"},
		{bind: "127.0.0.1", pods: "10.86.0.0/16"},
		{bind: "192.0.2.1", pods: "10.86.0.0/16", refused: true}, // what was between does not count
	} {
		err := up(c.bind, c.pods)
		if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "have ranges of 10.85.0.0/16,fd85:c0ac:1e00::/48 ") {
			t.Errorf("--bind-address %s --pod-cidr %s: %v", c.bind, c.pods, err)
		}
	}
}

func scopeOf(link int) netlink.Scope {
	if link == 0 {
		return netlink.SCOPE_UNIVERSE
	}
	return netlink.SCOPE_LINK
}

// A cluster keeps the network that its Services have addresses of.
func TestServiceRangeOfDataStays(t *testing.T) {
	p := place{root: t.TempDir()}
	remember(t, p, upOptions{Port: 6443}) // of a release without the flag
	u := &upRun{place: p, o: &upOptions{ServiceCIDR: "10.112.0.0/16"}, last: remembered(p)}
	onOtherMachine(t, u.checkServiceRange) // there is no data yet
	if err := os.MkdirAll(filepath.Join(p.kubeRoot(), "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	onOtherMachine(t, func() error {
		if err := u.checkServiceRange(); err == nil || !strings.Contains(err.Error(), "have addresses of 10.96.0.0/16") {
			t.Errorf("another network: %v", err)
		}
		u.o.ServiceCIDR = "10.96.0.0/16"
		return u.checkServiceRange()
	})
}
