package main

import (
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
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

		for _, held := range []string{"10.112.0.1", "10.112.0.10"} {
			makeGuard(t, held)
		}
		dns, err := net.Listen("tcp", "10.112.0.10:53") // the other cluster's
		if err != nil {
			t.Error(err)
			return
		}
		defer dns.Close()
		remove := func(want ...string) {
			if err := removeHeldAddresses(upOptions{ServiceCIDR: "10.112.0.0/16"}); err != nil {
				t.Error(err)
			}
			if got := addressesLeft(t); !slices.Equal(got, want) {
				t.Errorf("left are the addresses %q, want %q", got, want)
			}
			var tables []string
			for _, a := range want {
				tables = append(tables, "coracle-addr-"+a, "coracle-addr-"+a+"-53")
			}
			if got := tablesLeft(t); !slices.Equal(got, tables) {
				t.Errorf("left are the tables %q, want %q", got, tables)
			}
		}
		remove("10.112.0.10")
		_ = dns.Close()
		remove() // of a killed process, on a kernel without owners of tables
	})
}

// A cluster that is starting has an owner of its tables before it listens.
func TestOwnedAddressIsKept(t *testing.T) {
	alone(t, func() {
		for _, args := range []string{"link set lo up", "addr add 10.112.0.1/32 dev lo"} {
			if said, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v: %s", args, err, said)
				return
			}
		}
		owner, err := ownTable("coracle-addr-10.112.0.1")
		if err != nil {
			t.Error(err)
			return
		}
		for _, want := range [][]string{{"10.112.0.1"}, nil} {
			if err := removeHeldAddresses(upOptions{ServiceCIDR: "10.112.0.0/16"}); err != nil {
				t.Error(err)
			}
			if got := addressesLeft(t); !slices.Equal(got, want) {
				t.Errorf("left are %q, want %q", got, want)
			}
			_ = owner.Close() // killed: the kernel removes the table
		}
	})
}

// ownTable makes a table that ends with the connection. The nftables package sends no flags of
// tables.
func ownTable(name string) (*mdnetlink.Conn, error) {
	const ownerFlag = 2 // NFT_TABLE_F_OWNER (linux/netfilter/nf_tables.h)
	attributes, err := mdnetlink.MarshalAttributes([]mdnetlink.Attribute{
		{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(name), 0)},
		{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, ownerFlag)},
	})
	if err != nil {
		return nil, err
	}
	c, err := mdnetlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	message := func(kind int, flags mdnetlink.HeaderFlags, family, resource byte, data []byte) mdnetlink.Message {
		return mdnetlink.Message{
			Header: mdnetlink.Header{Type: mdnetlink.HeaderType(kind), Flags: mdnetlink.Request | flags},
			Data:   append([]byte{family, unix.NFNETLINK_V0, 0, resource}, data...),
		}
	}
	_, err = c.SendMessages([]mdnetlink.Message{
		message(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil),
		message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, mdnetlink.Create|mdnetlink.Acknowledge, unix.NFPROTO_INET, 0, attributes),
		message(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil),
	})
	if err == nil {
		_, err = c.Receive()
	}
	return c, err
}

// makeGuard makes the tables that hold an address, without an owner.
func makeGuard(t *testing.T, held string) {
	c, err := nftables.New()
	if err != nil {
		t.Error(err)
		return
	}
	for _, name := range []string{"coracle-addr-" + held, "coracle-addr-" + held + "-53"} {
		c.AddTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
	}
	if err := c.Flush(); err != nil {
		t.Error(err)
	}
}

// addressesLeft are those of lo but 127.0.0.1.
func addressesLeft(t *testing.T) (left []string) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Error(err)
		return nil
	}
	all, err := netlink.AddrList(lo, netlink.FAMILY_V4)
	if err != nil {
		t.Error(err)
	}
	for _, a := range all {
		if !a.IP.IsLoopback() {
			left = append(left, a.IP.String())
		}
	}
	return left
}

func tablesLeft(t *testing.T) (left []string) {
	c, err := nftables.New()
	if err != nil {
		t.Error(err)
		return nil
	}
	all, err := c.ListTables()
	if err != nil {
		t.Error(err)
	}
	for _, table := range all {
		left = append(left, table.Name)
	}
	slices.Sort(left)
	return left
}
