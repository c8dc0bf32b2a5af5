package main

import (
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
		for _, a := range []string{"10.112.0.1/32", "10.112.0.2/32", "10.112.0.10/32"} {
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
			if err := removeHeldAddresses("10.112.0.0/16"); err != nil {
				t.Error(err)
			}
		}
		left, err := netlink.AddrList(lo, netlink.FAMILY_V4)
		if err != nil || len(left) != 1 || left[0].IP.String() != "10.112.0.2" {
			t.Errorf("left are %v, %v", left, err)
		}
	})
}

// down removes the rules of its own cluster and no others.
func TestRulesAreRemoved(t *testing.T) {
	alone(t, func() {
		c, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		for _, name := range []string{"coracle-services-6443", "coracle-policy-6443", "coracle-services-7443", "coracle-policy-7443"} {
			c.AddTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
		}
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
		for range 2 { // the second time there is nothing to do
			if err := removeRules(6443); err != nil {
				t.Error(err)
			}
		}
		left, err := c.ListTables()
		if err != nil || len(left) != 2 || !strings.HasSuffix(left[0].Name, "-7443") || !strings.HasSuffix(left[1].Name, "-7443") {
			t.Errorf("left are %v, %v", left, err)
		}
	})
}
