package nftable

import (
	"encoding/binary"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// three has three maps, which a transaction changes in this order.
type three struct{ elements []Element }

func (three) Sets() (all []*nftables.Set) {
	for _, name := range []string{"first", "second", "third"} {
		all = append(all, &nftables.Set{Name: name, IsMap: true, KeyType: nftables.TypeMark, DataType: nftables.TypeMark})
	}
	return all
}

func (three) Chains() []Chain { return nil }

func (l *three) Elements() iter.Seq[Element] { return slices.Values(l.elements) }

func number(i int) string { return string(binary.BigEndian.AppendUint32(nil, uint32(i))) }

// A transaction of several messages with one element that the kernel refuses changes nothing,
// wherever the element is, and the next Apply does not depend on it.
func TestRefusedTransaction(t *testing.T) {
	const each = 5000 // of a map: more than fit into a message
	for place, bad := range map[string]Element{
		"at the start":       {Set: 0, Key: "\x00\x00", Value: number(1)},
		"in the middle":      {Set: 1, Key: "\x00\x00", Value: number(1)},
		"at the end":         {Set: 2, Key: "\x00\x00", Value: number(1)},
		"with another value": {Set: 2, Key: number(each), Value: number(1)}, // the kernel has it
	} {
		t.Run(place, func(t *testing.T) {
			n := testnet.New(t)
			within := func(f func() error) (err error) {
				n.Within(func() { err = f() })
				return err
			}
			layout := &three{}
			for set := range 3 {
				layout.elements = append(layout.elements, Element{Set: set, Key: number(each), Value: number(2)})
			}
			table := open(t, &n.Space, layout)
			if err := table.Apply(t.Context(), table.Batch()); err != nil {
				t.Fatal(err)
			}
			listed := func() string { return testnet.SortedLines(n.Run("nft list ruleset")) }
			before := listed()
			batch := table.Batch()
			for i := range 3 * each {
				e := Element{Set: i % 3, Key: number(i / 3), Value: number(i)}
				layout.elements = append(layout.elements, e)
				batch.Put(e)
			}
			batch.Put(bad)
			if err := within(func() error { return table.kernel.apply(batch) }); err == nil {
				t.Fatal("the kernel takes the batch, so the test shows nothing")
			}
			if got := listed(); got != before {
				t.Errorf("it changed something: %d bytes are listed, and were %d", len(got), len(before))
			}
			if err := within(func() error { return table.Apply(t.Context(), batch) }); err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(n.Run("nft list ruleset"), " : 0x"); got != 3*each+3 {
				t.Errorf("%d elements after the next Apply", got)
			}
			batch = table.Batch()
			batch.Remove(layout.elements[0])
			if err := table.kernel.apply(batch); batch.Whole() || err != nil {
				t.Errorf("a later batch: of everything %t, %v", batch.Whole(), err)
			}
		})
	}
}

// A socket that is closed, as when it could not be opened again after an error, is opened again.
// What cannot be read counts as no change by another program.
func TestClosedSocket(t *testing.T) {
	n := testnet.New(t)
	layout := &plain{ahead: never, elements: []Element{{Key: number(1), Value: Native(2)}}}
	table := open(t, &n.Space, layout)
	if err := table.Apply(t.Context(), table.Batch()); err != nil {
		t.Fatal(err)
	}
	want := n.Run("nft list ruleset")
	for _, change := range []string{"flush ruleset", "add element inet test data { 0x3 : 0x2 }"} {
		n.Within(func() {
			_ = table.kernel.close()
			n.Run("nft " + change)
			for range 2 {
				if differed, err := table.Repair(t.Context()); err != nil || differed {
					t.Errorf("%s: %v, differed %t", change, err, differed)
				}
			}
		})
		if got := n.Run("nft list ruleset"); got != want {
			t.Errorf("%s: %s", change, got)
		}
	}
}

// After an error in it a transaction comes from another socket. What that sends later is the
// table's own, too.
func TestOwnChangesAfterAdapt(t *testing.T) {
	n := testnet.New(t)
	layout := &modest{plain: &plain{priority: unsupported, ahead: never}}
	dial := func() (*netlink.Conn, error) { return netlink.Dial(unix.NETLINK_NETFILTER, nil) }
	// The process's first socket gets the same port id each time, others get new ones.
	testnet.Open(t, &n.Space, dial)
	table := open(t, &n.Space, layout)
	if err := table.watch.close(); err != nil {
		t.Fatal(err)
	}
	// No one reads this one, so that the test can look at the first notification.
	conn := testnet.Open(t, &n.Space, dial)
	table.watch = &watch{table: "test", conn: conn, changed: make(chan struct{}, 1)}
	table.watch.once.Do(func() {}) // there is no reader to stop
	var err error
	n.Within(func() { err = table.Apply(t.Context(), table.Batch()) })
	if err != nil || layout.asked != 1 {
		t.Fatalf("%v, asked %d times", err, layout.asked)
	}
	batch := table.Batch()
	batch.Put(Element{Key: number(1), Value: Native(2)})
	if err := table.kernel.apply(batch); err != nil {
		t.Fatal(err)
	}
	n.Run("nft delete element inet test data { 0x1 }")
	messages, err := conn.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if got := int(messages[0].Header.Type) & 0xff; got != unix.NFT_MSG_DELSETELEM {
		t.Errorf("the first notification is of kind %d: the table's own transactions are told of", got)
	}
}
