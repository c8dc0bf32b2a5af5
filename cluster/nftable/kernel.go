package nftable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// The socket's buffers must hold a transaction and its answers. The kernel takes memory for
	// what is in them.
	sendBuffer    = 256 << 20
	receiveBuffer = 64 << 20
	// answerLimit bounds the wait for the answers, which the kernel has sent when the transaction
	// is done.
	answerLimit = time.Minute
)

// kernel sends transactions about one table, and reads it.
type kernel struct {
	table  *nftables.Table
	layout Layout
	sets   []*nftables.Set // layout's
	conn   *nftables.Conn  // reads
	socket *netlink.Conn   // sends transactions
	portID uint32          // of the socket
}

func openKernel(name string, layout Layout) (*kernel, error) {
	k := &kernel{table: &nftables.Table{Name: name, Family: nftables.TableFamilyINet}, layout: layout}
	if layout != nil {
		k.sets = layout.Sets()
	}
	for i, s := range k.sets {
		s.Table, s.ID = k.table, uint32(i+1)
	}
	return k, k.open()
}

func (k *kernel) open() error {
	socket, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	portID, err := portOf(socket)
	// A refusal has no copy of what is refused.
	err = errors.Join(err, socket.SetOption(netlink.CapAcknowledge, true), socket.SetWriteBuffer(sendBuffer),
		socket.SetReadBuffer(receiveBuffer))
	var conn *nftables.Conn
	if err == nil {
		conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(largeAnswers))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open nftables: %w", err), socket.Close())
	}
	k.conn, k.socket, k.portID = conn, socket, portID
	return nil
}

// portOf is the port id that notifications of the socket's transactions have.
func portOf(socket *netlink.Conn) (uint32, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var name unix.Sockaddr
	if cerr := raw.Control(func(fd uintptr) { name, err = unix.Getsockname(int(fd)) }); cerr != nil {
		return 0, cerr
	}
	address, ok := name.(*unix.SockaddrNetlink)
	if err == nil && !ok {
		err = fmt.Errorf("its address is a %T", name)
	}
	if err != nil {
		return 0, fmt.Errorf("address of a netlink socket: %w", err)
	}
	return address.Pid, nil
}

func (k *kernel) close() error { return errors.Join(k.conn.CloseLasting(), k.socket.Close()) }

// askGeneration asks for the number of the last transaction of anyone.
func askGeneration() netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, // struct nfgenmsg
	}
}

// generation is the number of the last transaction of anyone.
func (k *kernel) generation() (uint32, error) {
	answer, err := k.socket.Execute(askGeneration())
	if err != nil {
		return 0, k.again(fmt.Errorf("ask for nftables' generation: %w", err))
	}
	for _, m := range answer {
		attributes, err := netlink.NewAttributeDecoder(m.Data[min(4, len(m.Data)):])
		if err != nil {
			return 0, fmt.Errorf("ask for nftables' generation: %w", err)
		}
		attributes.ByteOrder = binary.BigEndian
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_GEN_ID {
				return attributes.Uint32(), nil
			}
		}
	}
	return 0, errors.New("ask for nftables' generation: no answer")
}

func (k *kernel) remove() error {
	return k.transaction(func(t *transaction) error {
		t.AddTable(k.table) // so that there is one to delete
		t.DelTable(k.table)
		return nil
	})
}

// apply sends the changes of a batch.
func (k *kernel) apply(b *Batch) error {
	removed, added := k.elements(), k.elements()
	for p, d := range b.changes {
		if d.had && d.has && d.before == d.now {
			continue
		}
		if d.had {
			removed.add(Element{Set: p.Set, Key: p.Key, End: p.End})
		}
		if d.has {
			added.add(Element{Set: p.Set, Key: p.Key, End: p.End, Value: d.now})
		}
	}
	again := k.allOf(k.slow(removed), removed, added)
	return k.transaction(func(t *transaction) error {
		for _, ch := range b.added {
			if err := k.addChain(t, ch); err != nil {
				return err
			}
		}
		if err := k.makeAgain(t, again); err != nil {
			return err
		}
		if err := t.change(removed, added); err != nil {
			return err
		}
		for _, name := range b.removed { // after what referred to them
			t.DelChain(&nftables.Chain{Table: k.table, Name: name})
		}
		return nil
	})
}

func (k *kernel) chain(c Chain) *nftables.Chain {
	out := &nftables.Chain{Table: k.table, Name: c.Name, Hooknum: c.Hook, Type: c.Kind}
	if c.Hook != nil {
		accept := nftables.ChainPolicyAccept
		out.Priority, out.Policy = &c.Priority, &accept
	}
	return out
}

// addChain adds a chain with its rules.
func (k *kernel) addChain(t *transaction, c Chain) error {
	t.AddChain(k.chain(c))
	return k.addRules(t, c)
}

func (k *kernel) addRules(t *transaction, c Chain) error {
	for _, r := range c.Rules {
		note, err := noteOf(r)
		if err != nil {
			return fmt.Errorf("chain %s: %w", c.Name, err)
		}
		t.AddRule(&nftables.Rule{Table: k.table, Chain: &nftables.Chain{Name: c.Name}, Exprs: r, UserData: note})
	}
	return nil
}

// replace makes the table from nothing, in one transaction: there is no moment without rules.
func (k *kernel) replace() error {
	err := k.renew()
	if layout, ok := k.layout.(Adaptable); ok && errors.Is(err, unix.EOPNOTSUPP) && layout.Adapt() {
		err = k.renew()
	}
	return err
}

func (k *kernel) renew() error {
	return k.transaction(func(t *transaction) error {
		t.AddTable(k.table)
		t.DelTable(k.table)
		t.AddTable(k.table)
		return k.fill(t, &Found{})
	})
}

// correction makes the messages that change what differs from what is wanted.
func (k *kernel) correction(f *Found) ([]netlink.Message, error) {
	return build(func(t *transaction) error { return k.fill(t, f) })
}

func (k *kernel) fill(t *transaction, f *Found) error {
	removed, added := k.elements(), k.elements()
	for e := range k.layout.Elements() {
		if len(f.Elements) > 0 {
			p := Place{e.Set, e.Key, e.End}
			if is, exists := f.Elements[p]; exists {
				delete(f.Elements, p)
				if is == e.Value {
					continue
				}
				removed.add(Element{Set: e.Set, Key: e.Key, End: e.End})
			}
		}
		added.add(e)
	}
	for p := range f.Elements {
		removed.add(Element{Set: p.Set, Key: p.Key, End: p.End})
	}
	again := k.allOf(k.slow(removed), removed, added)
	chains, gone, err := k.chainsToFill(f, again)
	if err != nil {
		return err
	}
	for _, ch := range chains { // all first: they may refer to each other
		t.AddChain(k.chain(ch))
		if f.Layout { // it may exist though it was not listed, see settled
			t.FlushChain(&nftables.Chain{Table: k.table, Name: ch.Name})
		}
	}
	for _, name := range gone {
		t.FlushChain(&nftables.Chain{Table: k.table, Name: name})
	}
	for i, s := range k.sets {
		if f.Layout && !slices.Contains(again, i) {
			continue
		}
		if f.Layout {
			t.DelSet(s)
		}
		if err := t.AddSet(s, nil); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	for _, ch := range chains {
		if err := k.addRules(t, ch); err != nil {
			return err
		}
	}
	if err := t.change(removed, added); err != nil {
		return err
	}
	for _, name := range gone { // after what referred to them
		t.DelChain(&nftables.Chain{Table: k.table, Name: name})
	}
	return nil
}

// chainsToFill returns the chains that are missing, have another policy or other rules, or refer to
// sets that are made again, and the names of those that are to go. Others stay as they are: for
// each rule that looks into a map, and is new in its chain, the kernel (6.18) passes by all
// elements. It is an error if a chain is hooked otherwise, which the kernel changes of no chain.
func (k *kernel) chainsToFill(f *Found, again []int) (chains []Chain, gone []string, err error) {
	known := map[string]bool{}
	for _, ch := range k.layout.Chains() {
		known[ch.Name] = true
		want, err := k.state(ch)
		if err != nil {
			return nil, nil, err
		}
		is, exists := f.chains[ch.Name]
		if exists && is.hook != want.hook {
			return nil, nil, fmt.Errorf("chain %s: it is %q, not %q", ch.Name, is.hook, want.hook)
		}
		refers := slices.ContainsFunc(ch.Rules, func(rule []expr.Any) bool { return k.refers(rule, again) })
		if !exists || is != want || refers {
			chains = append(chains, ch)
		}
	}
	for name := range f.chains {
		if !known[name] {
			gone = append(gone, name)
		}
	}
	return chains, gone, nil
}
