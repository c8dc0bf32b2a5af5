package nftable

import (
	"encoding/binary"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// plain has one map.
type plain struct {
	elements []Element
	priority nftables.ChainPriority
	ahead    func() bool
}

func (plain) Sets() []*nftables.Set {
	return []*nftables.Set{{Name: "data", IsMap: true, KeyType: nftables.TypeMark, DataType: nftables.TypeMark}}
}

func (p *plain) Chains() []Chain {
	return []Chain{{Name: "hooked", Hook: nftables.ChainHookPrerouting, Kind: nftables.ChainTypeNAT, Priority: p.priority}}
}

func (p *plain) Elements() iter.Seq[Element] {
	if p.ahead() {
		return slices.Values([]Element{})
	}
	return slices.Values(p.elements)
}

// modest can do with another priority.
type modest struct {
	*plain
	asked int
}

func (m *modest) Adapt() bool {
	m.asked++
	m.priority = 0
	return m.asked == 1
}

func open(t *testing.T, s *testnet.Space, layout Layout) *Table {
	t.Helper()
	var table *Table
	var err error
	s.Within(func() { table, err = Open("test", layout, slog.New(slog.DiscardHandler)) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Close() })
	return table
}

func never() bool { return false }

// The kernel supports no translation of addresses before it tracks connections.
const unsupported = nftables.ChainPriority(-300)

func TestAdapt(t *testing.T) {
	n := testnet.New(t)
	// After an error a table opens its socket again, in the namespace where it is then.
	within := func(f func() error) (err error) {
		n.Within(func() { err = f() })
		return err
	}
	if err := within(open(t, &n.Space, &plain{priority: unsupported, ahead: never}).Replace); err == nil {
		t.Fatal("the kernel supports the layout, so the test shows nothing")
	}
	for name, enforce := range map[string]func(*Table) error{
		"Replace": (*Table).Replace,
		"Apply":   func(table *Table) error { return table.Apply(t.Context(), table.Batch()) },
	} {
		layout := &modest{plain: &plain{priority: unsupported, ahead: never}}
		table := open(t, &n.Space, layout)
		if err := within(func() error { return enforce(table) }); err != nil || layout.asked != 1 {
			t.Errorf("%s: %v, asked %d times", name, err, layout.asked)
		}
		if len(table.Changed()) > 0 {
			t.Errorf("%s: the table's own transactions count as someone else's", name)
		}
		if out := n.Run("nft list table inet test"); !strings.Contains(out, "priority filter") {
			t.Errorf("%s: %s", name, out)
		}
		n.Run("nft flush ruleset")
	}
}

// What is sent ahead stays if it is still there, and comes again otherwise.
func TestSendAhead(t *testing.T) {
	for name, between := range map[string]func(*testnet.Node, *Table){
		"nothing":  func(*testnet.Node, *Table) {},
		"a reread": func(_ *testnet.Node, table *Table) { table.Reread() },
		"a flush": func(n *testnet.Node, table *Table) {
			n.Run("nft flush ruleset")
			<-table.Changed()
			if err := table.Repair(t.Context()); err != nil {
				t.Error(err)
			}
		},
	} {
		n := testnet.New(t)
		layout := &plain{ahead: never}
		table := open(t, &n.Space, layout)
		layout.ahead = table.Ahead
		if table.Ahead() {
			t.Error("ahead without a table")
		}
		if err := table.Replace(); err != nil || !table.Ahead() {
			t.Fatal(err)
		}
		for i := range uint32(5000) { // more than fit into a message
			key := string(binary.BigEndian.AppendUint32(nil, i))
			layout.elements = append(layout.elements, Element{Key: key, Value: key})
		}
		for _, elements := range [][]Element{nil, layout.elements} {
			if err := table.SendAhead(slices.Values(elements)); err != nil || !table.Ahead() {
				t.Fatal(err)
			}
		}
		if len(table.Changed()) > 0 {
			t.Error("the table's own transactions count as someone else's")
		}
		count := func() int { return strings.Count(n.Run("nft list map inet test data"), " : 0x") }
		if got := count(); got != 5000 {
			t.Errorf("%d elements are ahead", got)
		}
		between(n, table)
		if err := table.Apply(t.Context(), table.Batch()); err != nil || table.Ahead() {
			t.Errorf("%v, ahead %v", err, table.Ahead())
		}
		if got := count(); got != 5000 {
			t.Errorf("after %s: %d elements", name, got)
		}
	}
}
