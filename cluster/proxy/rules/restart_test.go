package rules

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// Until Services are known, connections to them are refused; but not if an earlier process left
// rules.
func TestRefusedUntilServicesAreKnown(t *testing.T) {
	n := newNode(t)
	table := n.open()
	if err := table.Refuse(); err != nil {
		t.Fatal(err)
	}
	n.refused(n.a, "tcp", at(service4, 80))
	n.refused(n.a, "udp", at(service6, 80))
	n.apply(table, n.twoServices())
	n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String())
	table = n.reopen(table)
	if err := table.Refuse(); err != nil {
		t.Fatal(err)
	}
	n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String())
}

// reopen is what a restart does: the table stays, and another process opens it.
func (n *node) reopen(table *Table) *Table {
	n.t.Helper()
	if err := table.Close(); err != nil {
		n.t.Fatal(err)
	}
	return n.open()
}

// echo checks that a connection still carries data both ways.
func echo(conn io.ReadWriter) error {
	if _, err := io.WriteString(conn, "still here"); err != nil {
		return err
	}
	got := make([]byte, len("still here"))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "still here" {
		return fmt.Errorf("%q, %w", got, err)
	}
	return nil
}

func (n *node) twoServices() map[Key]*Port {
	ports, _ := twoServices(n.b.IPv4.String())
	return ports
}

// twoServices have ports 80 and 81, and node ports. Endpoints are addresses of pods.
func twoServices(endpoints string) (map[Key]*Port, []netip.AddrPort) {
	var all []netip.AddrPort
	for _, e := range strings.Fields(endpoints) {
		all = append(all, to(netip.MustParseAddr(e)))
	}
	port := func(number uint16, endpoints []netip.AddrPort) *Port {
		return &Port{
			Protocol: unix.IPPROTO_TCP, Backends: []Backend{{Endpoints: endpoints}},
			Frontends: []Frontend{{Addr: netip.MustParseAddr(service4), Port: number}, {Port: 30000 + number, Masquerade: true}},
		}
	}
	return map[Key]*Port{"one": port(80, all[:1]), "two": port(81, all)}, all
}

func TestRestartLosesNothing(t *testing.T) {
	n := newNode(t)
	table := n.open()
	n.apply(table, n.twoServices())
	conn, err := n.a.Dial("tcp", at(service4, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, len("b 10.244.0.2\n"))); err != nil {
		t.Fatal(err)
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String()) // while no process runs
	if err := echo(conn); err != nil {
		t.Errorf("an established connection, while no process runs: %v", err)
	}
	before := n.Run("nft -a list table inet " + tableName)
	table = n.open()
	want := n.twoServices()
	delete(want, "two") // deleted meanwhile
	n.apply(table, want)
	n.refused(n.a, "tcp", at(service4, 81))
	n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String())
	if err := echo(conn); err != nil {
		t.Errorf("an established connection, after the restart: %v", err)
	}
	if !strings.Contains(before, "10.96.0.10 . tcp . 81") {
		t.Errorf("the test shows nothing, as this was before:\n%s", before)
	}
	if out := n.Run("nft list table inet " + tableName); strings.Contains(out, ". 81 :") || strings.Contains(out, "30081") {
		t.Errorf("a Service that is gone is left:\n%s", out)
	}
	n.Within(func() { err = Remove(tableName) })
	if out := n.Run("nft list tables"); err != nil || out != "" {
		t.Errorf("%v, left are:\n%s", err, out)
	}
}

// Whatever others do to the table, one Repair makes it what it was.
func TestChangesByOthersAreRepaired(t *testing.T) {
	n := newNode(t)
	table := n.open()
	sticky := n.twoServices()
	sticky["one"].Backends = []Backend{{Endpoints: []netip.AddrPort{to(n.a.IPv4), to(n.b.IPv4)}, Affinity: time.Hour}}
	n.apply(table, sticky)
	testnet.Repairs(t, &n.Space, table, []string{
		"flush ruleset",
		"delete table inet " + tableName,
		"flush map inet " + tableName + " svc4",
		"delete element inet " + tableName + " ep4 { 0x1000 . 0x0 }",
		"flush chain inet " + tableName + " services",
		"add rule inet " + tableName + " prerouting drop",
		"chain inet " + tableName + " prerouting { policy drop; }",
		"add element inet " + tableName + " svc4 { 10.96.0.99 . tcp . 80 : 0x1001 }",
		"add chain inet " + tableName + " other",
		"add set inet " + tableName + " other { type ipv4_addr; }",
		"flush chain inet " + tableName + " postrouting",
		"flush map inet " + tableName + " kinds4",
	}, func() { n.expect(n.a, "tcp", at(service4, 81), "b "+n.a.IPv4.String()) })
	n.Run("nft add table inet another")
	n.Run("nft add table ip " + tableName)
	n.Run("nft flush map inet " + tableName + " svc4")
	<-table.Changed()
	select {
	case <-table.Changed():
		t.Error("changes of other tables count, too")
	default:
	}
	_, _ = table.Repair(t.Context())
}
