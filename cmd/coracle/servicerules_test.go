package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// alone runs f in a network namespace of its own.
func alone(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends, and the namespace with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("it must be root: %v", err)
			return
		}
		f()
	}()
	<-done
}

// down removes the addresses that a killed cluster process has left, and no others.
func TestAddressesForPodsAreRemoved(t *testing.T) {
	alone(t, func() {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Error(err)
			return
		}
		for _, a := range []string{"10.112.0.1/32", "10.112.0.2/32", "10.112.0.10/32", "10.112.0.53/32", "192.0.2.53/32"} {
			addr, err := netlink.ParseAddr(a)
			if err == nil {
				err = netlink.AddrAdd(lo, addr)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
		for range 2 { // the second time there is nothing to do
			o := upOptions{ServiceCIDR: "10.112.0.0/16", ClusterDNS: []string{"10.112.0.53", "192.0.2.53"}}
			if err := removeHeldAddresses(o); err != nil {
				t.Error(err)
			}
		}
		left, err := netlink.AddrList(lo, netlink.FAMILY_V4)
		if err != nil || len(left) != 2 || left[0].IP.String() != "10.112.0.2" || left[1].IP.String() != "192.0.2.53" {
			t.Errorf("left are %v, %v", left, err)
		}
	})
}

// The rules of a cluster that has ended are removed, and no others: neither those of another port,
// nor those of another cluster that has taken the port.
func TestRulesAreRemoved(t *testing.T) {
	alone(t, func() {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Error(err)
			return
		}
		c, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		for _, port := range []int{6443, 7443, 8443} {
			for _, name := range rulesOf(port) {
				c.AddTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
			}
		}
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
		another, err := net.Listen("tcp", "127.0.0.1:8443")
		if err != nil {
			t.Error(err)
			return
		}
		defer another.Close()
		for _, port := range []int{6443, 6443, 8443} { // the second time there is nothing to do
			if err := removeRules("127.0.0.1", port); err != nil {
				t.Error(err)
			}
		}
		if len(rulesLeft(6443)) != 0 || len(rulesLeft(7443)) != 2 || len(rulesLeft(8443)) != 2 {
			left, err := c.ListTables()
			t.Errorf("left are %v, %v", left, err)
		}
	})
}

// Of two clusters, down of the one that has ended leaves what the other has: its addresses for pods
// and its announcements.
func TestAnotherClusterKeepsItsAddresses(t *testing.T) {
	dir := t.TempDir()
	const remove = "#!/bin/sh\n[ \"$1 $2 $3\" = 'load-balancers remove --sink' ] && exec ip link del \"$4\"\n"
	if err := os.WriteFile(filepath.Join(dir, "coracle-kube"), []byte(remove), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	alone(t, func() {
		for _, args := range []string{
			"link set lo up", "addr add 10.112.0.1/32 dev lo", "addr add 10.112.0.10/32 dev lo",
			"link add coracle-lb6443 type veth peer name far1", "link add coracle-lb8443 type veth peer name far2",
		} {
			if said, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v: %s", args, err, said)
				return
			}
		}
		another, err := net.Listen("tcp", "127.0.0.1:8443")
		if err != nil {
			t.Error(err)
			return
		}
		defer another.Close()
		for _, port := range []int{6443, 6443, 8443} { // the second time there is nothing to do
			if err := removeAnnouncements(t.Context(), "127.0.0.1", port); err != nil {
				t.Error(err)
			}
		}
		if announces(6443) || !announces(8443) {
			t.Errorf("announced are 6443: %t, 8443: %t; want those of the cluster that runs", announces(6443), announces(8443))
		}

		c, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		c.AddTable(&nftables.Table{Name: "coracle-addr-10.112.0.10", Family: nftables.TableFamilyINet})
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
		if err := removeHeldAddresses(upOptions{ServiceCIDR: "10.112.0.0/16"}); err != nil {
			t.Error(err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Error(err)
			return
		}
		left, err := netlink.AddrList(lo, netlink.FAMILY_V4)
		if err != nil || len(left) != 2 || left[1].IP.String() != "10.112.0.10" { // the first is 127.0.0.1
			t.Errorf("left are %v, %v", left, err)
		}
	})
}
