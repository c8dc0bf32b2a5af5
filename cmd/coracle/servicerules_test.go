package main

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

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
		for _, port := range []int{6443, 7443, 8443, 9443} {
			for _, name := range rulesOf(port) {
				c.AddTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
			}
		}
		c.AddTable(&nftables.Table{Name: "coracle-cluster-9443", Family: nftables.TableFamilyINet}) // one at another address
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
		another, err := net.Listen("tcp", "127.0.0.1:8443")
		if err != nil {
			t.Error(err)
			return
		}
		defer another.Close()
		for _, port := range []int{6443, 6443, 8443, 9443} { // the second time there is nothing to do
			if err := removeRules("127.0.0.1", port); err != nil {
				t.Error(err)
			}
		}
		if len(rulesLeft(6443)) != 0 || len(rulesLeft(7443)) != 2 || len(rulesLeft(8443)) != 2 || len(rulesLeft(9443)) != 2 {
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

// Regression: on a kernel without inet_diag, down found an error where it looked for who listens,
// and went no further.
func TestAddressesAreRemovedWithoutSocketDiagnosis(t *testing.T) {
	alone(t, func() {
		for _, args := range []string{"link set lo up", "addr add 10.112.0.1/32 dev lo", "addr add 10.112.0.10/32 dev lo"} {
			if said, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v: %s", args, err, said)
				return
			}
		}
		dns, err := net.Listen("tcp", "10.112.0.10:53") // another cluster's
		if err != nil {
			t.Error(err)
			return
		}
		defer dns.Close()
		if err := withoutSocketDiagnosis(); err != nil {
			t.Error(err)
			return
		}
		if _, err := netlink.SocketDiagTCP(unix.AF_INET); !errors.Is(err, unix.EPROTONOSUPPORT) {
			t.Errorf("the diagnosis is there, so this shows nothing: %v", err)
		}
		if err := removeHeldAddresses(upOptions{ServiceCIDR: "10.112.0.0/16"}); err != nil {
			t.Error(err)
		}
		if got := addressesLeft(t); !slices.Equal(got, []string{"10.112.0.10"}) {
			t.Errorf("left are %q, want the one at which a process listens", got)
		}
	})
}

// withoutSocketDiagnosis has this thread get no sockets for it, as on a kernel that has none.
func withoutSocketDiagnosis() error {
	const number, domain, protocol = 0, 16, 32 // in struct seccomp_data, on a machine with the low byte first
	differs := func(at, from uint32, to uint8) []unix.SockFilter {
		return []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: from, Jf: to},
		}
	}
	filter := slices.Concat(differs(number, unix.SYS_SOCKET, 5), differs(domain, unix.AF_NETLINK, 3),
		differs(protocol, unix.NETLINK_SOCK_DIAG, 1),
		[]unix.SockFilter{
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}

// What down cannot remove from the kernel's network keeps it from nothing else. What names it stays
// remembered.
func TestDownGoesOnWithoutRemovingRules(t *testing.T) {
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	if err := os.MkdirAll(p.kubeRoot(), 0o700); err != nil {
		t.Fatal(err)
	}
	remember(t, p, upOptions{Bind: "127.0.0.1", Port: 6443, ServiceCIDR: "10.112.0.0/16"})
	alone(t, func() {
		if said, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, said)
		}
		owner, err := ownTable(rulesOf(6443)[0])
		if err != nil {
			t.Error(err)
			return
		}
		defer owner.Close()
		if err := down(t.Context(), p, true, false, io.Discard); !errors.Is(err, unix.EPERM) {
			t.Errorf("down says %v, and another process owns a table", err)
		}
	})
	if _, err := os.Stat(p.kubeRoot()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("down did not go on: %v", err)
	}
	if o := remembered(p); o.Port != 6443 {
		t.Errorf("remembered are %+v", o)
	}
}

// down, leave and an up that fails have the cluster's program remove what leads to other nodes'
// pods, unless another cluster has the port by now.
func TestPathsAreRemoved(t *testing.T) {
	programs := t.TempDir()
	script := "#!/bin/sh\ncd " + programs + "\necho \"$@\" >> asked\n" +
		"[ ! -e refuse ] || { echo the tunnel stays; exit 1; }\nexec nft delete table inet coracle-overlay-7443\n"
	if err := os.WriteFile(filepath.Join(programs, "coracle-kube"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	if err := os.MkdirAll(p.root, 0o700); err != nil {
		t.Fatal(err)
	}
	remember(t, p, upOptions{Bind: "127.0.0.1", Port: 7443, Boot: "this"})
	const removal = "overlay remove --port 7443"
	alone(t, func() {
		if said, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Errorf("ip: %v: %s", err, said)
			return
		}
		end := func() error { return down(t.Context(), p, false, false, io.Discard) }
		expect := func(name, asked, complaint string) {
			t.Helper()
			err := end()
			if (err == nil) != (complaint == "") || err != nil && !strings.Contains(err.Error(), complaint) {
				t.Errorf("%s: %v, want %q", name, err, complaint)
			}
			file := filepath.Join(programs, "asked")
			if got, _ := os.ReadFile(file); strings.TrimSpace(string(got)) != asked {
				t.Errorf("%s: coracle-kube is asked %q, want %q", name, got, asked)
			}
			_ = os.Remove(file)
		}
		expect("there are none", "", "")
		for _, name := range []string{"coracle-overlay-7443", "coracle-overlay-8443"} {
			if said, err := exec.Command("nft", "add", "table", "inet", name).CombinedOutput(); err != nil {
				t.Errorf("nft: %v: %s", err, said)
				return
			}
		}
		other, err := net.Listen("tcp", "127.0.0.1:7443")
		if err != nil {
			t.Error(err)
			return
		}
		expect("the port is another cluster's", "", "")
		_ = other.Close()
		if err := os.WriteFile(filepath.Join(programs, "refuse"), nil, 0o600); err != nil {
			t.Error(err)
		}
		expect("they cannot be removed", removal, "coracle-kube "+removal+": exit status 1:\nthe tunnel stays")
		if err := os.Remove(filepath.Join(programs, "refuse")); err != nil {
			t.Error(err)
		}
		expect("they are removed", removal, "")
		expect("they are gone", "", "")
		if said, err := exec.Command("nft", "add", "table", "inet", "coracle-overlay-7443").CombinedOutput(); err != nil {
			t.Errorf("nft: %v: %s", err, said)
			return
		}
		failed := &upRun{place: p, o: &upOptions{Bind: "127.0.0.1", Port: 7443}, last: remembered(p), paths: true}
		end = func() error { return failed.fail(t.Context(), errors.New("no node")) }
		expect("they were there before an up that failed", "", "no node")
		failed.paths = false
		expect("an up that failed has made them", removal, "no node")
	})
}
