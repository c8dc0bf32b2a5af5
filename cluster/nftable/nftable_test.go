package nftable

import (
	"encoding/binary"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// plain has one map.
type plain struct {
	elements []Element
	rules    [][]expr.Any
	priority nftables.ChainPriority
	chain    *Chain // instead of what these say
	ahead    func() bool
}

func (plain) Sets() []*nftables.Set {
	return []*nftables.Set{{Name: "data", IsMap: true, KeyType: nftables.TypeMark, DataType: nftables.TypeMark}}
}

func (p *plain) Chains() []Chain {
	if p.chain != nil {
		return []Chain{*p.chain}
	}
	return []Chain{{Name: "hooked", Hook: nftables.ChainHookPrerouting, Kind: nftables.ChainTypeNAT, Priority: p.priority, Rules: p.rules}}
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
	return testnet.Open(t, s, func() (*Table, error) { return Open("test", layout, slog.New(slog.DiscardHandler)) })
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
			if _, err := table.Repair(t.Context()); err != nil {
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
			if err := table.SendAhead(nil, slices.Values(elements)); err != nil || !table.Ahead() {
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

// A transaction of ours during which another table changes may have missed a change of ours. Repair
// finds out.
func TestRepairTellsWhatDiffered(t *testing.T) {
	n := testnet.New(t)
	layout := &plain{ahead: never, elements: []Element{{Key: "\x00\x00\x00\x01", Value: Native(2)}}, rules: [][]expr.Any{Drop}}
	table := open(t, &n.Space, layout)
	if err := table.Apply(t.Context(), table.Batch()); err != nil {
		t.Fatal(err)
	}
	changes := map[string]bool{
		"add table inet another":                                  false,
		"add chain inet test other; delete chain inet test other": false,
		"add element inet test data { 0x3 : 0x2 }":                true,
		"delete element inet test data { 0x1 }":                   true,
		"add chain inet test other":                               true,
		"add set inet test other { type ipv4_addr; }":             true,
		"add rule inet test hooked accept":                        true,
		"flush chain inet test hooked":                            true,
		"chain inet test hooked { policy drop; }":                 true,
		"delete table inet test":                                  true,
		"flush ruleset":                                           true,
	}
	own := 0
	for change, want := range changes {
		for name, cause := range map[string]func(){
			"by itself": func() { n.Run("nft " + change) },
			"during a transaction": func() {
				err := table.unwatched(func() error {
					n.Run("nft " + change)
					return table.kernel.transaction(func(tr *transaction) error {
						own++ // or it would change nothing
						tr.AddTable(&nftables.Table{Name: fmt.Sprint("own", own), Family: nftables.TableFamilyINet})
						return nil
					})
				})
				if err != nil {
					t.Error(err)
				}
			},
		} {
			if name == "by itself" && !want {
				continue // there may be nothing to notice
			}
			cause()
			select {
			case <-table.Changed():
			case <-time.After(testnet.Patience):
				t.Fatalf("%s %s: nothing was noticed", change, name)
			}
			differed, err := table.Repair(t.Context())
			if err != nil || differed != want {
				t.Errorf("%s %s: %v, differed %v", change, name, err, differed)
			}
		}
	}
}
