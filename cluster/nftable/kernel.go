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
	// elementsPerMessage keeps the list of elements below 64 KiB, the longest that an attribute can
	// be.
	elementsPerMessage = 500
	// The socket's buffers must hold a transaction and its answers. The kernel takes memory for
	// what is in them.
	sendBuffer    = 256 << 20
	receiveBuffer = 64 << 20
	// answerLimit is long: a transaction of 45,000 Services takes seconds.
	answerLimit = time.Minute
)

// kernel sends transactions about one table.
type kernel struct {
	table  *nftables.Table
	layout Layout
	sets   []*nftables.Set // layout's
	conn   *nftables.Conn
	socket *netlink.Conn // conn's
	query  *netlink.Conn // for what the nftables package cannot ask
	portID uint32        // of the socket
}

func openKernel(name string, layout Layout) (*kernel, error) {
	k := &kernel{table: &nftables.Table{Name: name, Family: nftables.TableFamilyINet}, layout: layout}
	if layout != nil {
		k.sets = layout.Sets()
	}
	for i, s := range k.sets {
		s.Table, s.ID = k.table, uint32(i+1)
	}
	if err := k.open(); err != nil {
		return nil, err
	}
	var err error
	if k.query, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		return nil, errors.Join(fmt.Errorf("open nftables: %w", err), k.conn.CloseLasting())
	}
	return k, nil
}

func (k *kernel) open() error {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		k.socket = c
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		var name unix.Sockaddr
		if cerr := raw.Control(func(fd uintptr) { name, err = unix.Getsockname(int(fd)) }); cerr != nil {
			return cerr
		}
		if address, ok := name.(*unix.SockaddrNetlink); ok {
			k.portID = address.Pid
		}
		return errors.Join(err, c.SetWriteBuffer(sendBuffer), c.SetReadBuffer(receiveBuffer))
	}))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	k.conn = conn
	return nil
}

// limited runs f, and ends its waits for the kernel after answerLimit: to some errors, such as
// ENOMEM, the kernel gives one answer for a transaction, and the nftables package waits for one to
// each message.
func (k *kernel) limited(f func() error) error {
	if err := k.socket.SetReadDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	err := f()
	_ = k.socket.SetReadDeadline(time.Time{}) // of one that f has closed
	return err
}

func (k *kernel) close() error { return errors.Join(k.conn.CloseLasting(), k.query.Close()) }

// again opens the socket again after an error: it may have answers that were not read, and what is
// queued. If that fails, each later request opens one of its own.
func (k *kernel) again(err error) error {
	_ = k.conn.CloseLasting()
	return errors.Join(err, k.open())
}

// transaction sends what build adds as one.
func (k *kernel) transaction(build func(*nftables.Conn) error) error {
	err := k.limited(func() error {
		if err := build(k.conn); err != nil {
			return err
		}
		return k.conn.Flush()
	})
	if err != nil {
		return k.again(err)
	}
	return nil
}

// generation is the number of the last transaction of anyone.
func (k *kernel) generation() (uint32, error) {
	const getGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN
	answer, err := k.query.Execute(netlink.Message{
		Header: netlink.Header{Type: getGeneration, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, // struct nfgenmsg
	})
	if err != nil {
		return 0, fmt.Errorf("ask for nftables' generation: %w", err)
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
	return k.transaction(func(c *nftables.Conn) error {
		c.AddTable(k.table) // so that there is one to delete
		c.DelTable(k.table)
		return nil
	})
}

// apply sends the changes of a batch.
func (k *kernel) apply(b *Batch) error {
	removed, added := map[int][]nftables.SetElement{}, map[int][]nftables.SetElement{}
	for p, d := range b.changes {
		if d.had && d.has && d.before == d.now {
			continue
		}
		if d.had {
			removed[p.Set] = append(removed[p.Set], k.encode(Element{Set: p.Set, Key: p.Key, End: p.End}))
		}
		if d.has {
			added[p.Set] = append(added[p.Set], k.encode(Element{Set: p.Set, Key: p.Key, End: p.End, Value: d.now}))
		}
	}
	if len(removed) == 0 && len(added) == 0 && len(b.added) == 0 && len(b.removed) == 0 {
		return nil
	}
	again := k.allOf(k.slow(removed), removed, added)
	return k.transaction(func(c *nftables.Conn) error {
		for _, ch := range b.added {
			c.AddChain(k.chain(ch))
			k.addRules(c, ch)
		}
		if err := k.makeAgain(c, again); err != nil {
			return err
		}
		if err := k.send(c, removed, added); err != nil {
			return err
		}
		for _, name := range b.removed { // after what referred to them
			c.DelChain(&nftables.Chain{Table: k.table, Name: name})
		}
		return nil
	})
}

// send changes elements. What others refer to comes first.
func (k *kernel) send(c *nftables.Conn, removed, added map[int][]nftables.SetElement) error {
	for i, s := range k.sets {
		for chunk := range slices.Chunk(removed[i], elementsPerMessage) {
			if err := c.SetDeleteElements(s, chunk); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
			}
		}
	}
	for i, s := range k.sets {
		for chunk := range slices.Chunk(added[i], elementsPerMessage) {
			if err := c.SetAddElements(s, chunk); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
			}
		}
	}
	return nil
}

func isVerdicts(s *nftables.Set) bool { return s.DataType.Name == nftables.TypeVerdict.Name }

func (k *kernel) encode(e Element) nftables.SetElement {
	out := nftables.SetElement{Key: []byte(e.Key)}
	if e.End != "" {
		out.KeyEnd = []byte(e.End)
	}
	if e.Value == "" {
		return out
	}
	if isVerdicts(k.sets[e.Set]) {
		out.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: e.Value}
	} else {
		out.Val = []byte(e.Value)
	}
	return out
}

func (k *kernel) chain(c Chain) *nftables.Chain {
	out := &nftables.Chain{Table: k.table, Name: c.Name, Hooknum: c.Hook, Type: c.Kind}
	if c.Hook != nil {
		out.Priority = &c.Priority
	}
	return out
}

func (k *kernel) addRules(c *nftables.Conn, ch Chain) {
	for _, r := range ch.Rules {
		c.AddRule(&nftables.Rule{Table: k.table, Chain: &nftables.Chain{Name: ch.Name}, Exprs: r})
	}
}

// replace makes the table from nothing, in one transaction: there is no moment without rules.
func (k *kernel) replace() error {
	return k.transaction(func(c *nftables.Conn) error {
		c.AddTable(k.table)
		c.DelTable(k.table)
		c.AddTable(k.table)
		return k.fill(c, &Found{})
	})
}

// correct changes what differs from what is wanted. All rules are written again, as there are few.
func (k *kernel) correct(f *Found) error {
	if !f.Layout {
		return k.replace()
	}
	return k.transaction(func(c *nftables.Conn) error {
		c.AddTable(k.table)
		for _, name := range f.chains {
			c.FlushChain(&nftables.Chain{Table: k.table, Name: name})
		}
		return k.fill(c, f)
	})
}

func (k *kernel) fill(c *nftables.Conn, f *Found) error {
	removed, added := map[int][]nftables.SetElement{}, map[int][]nftables.SetElement{}
	for e := range k.layout.Elements() {
		if len(f.Elements) > 0 {
			p := Place{e.Set, e.Key, e.End}
			if is, exists := f.Elements[p]; exists {
				delete(f.Elements, p)
				if is == e.Value {
					continue
				}
				removed[e.Set] = append(removed[e.Set], k.encode(Element{Set: e.Set, Key: e.Key, End: e.End}))
			}
		}
		added[e.Set] = append(added[e.Set], k.encode(e))
	}
	for p := range f.Elements {
		removed[p.Set] = append(removed[p.Set], k.encode(Element{Set: p.Set, Key: p.Key, End: p.End}))
	}
	again := k.allOf(k.slow(removed), removed, added)
	for i, s := range k.sets {
		if f.Layout && !slices.Contains(again, i) {
			continue
		}
		if f.Layout {
			c.DelSet(s)
		}
		if err := c.AddSet(s, nil); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	chains := k.layout.Chains()
	known := map[string]bool{}
	for _, ch := range chains { // they may refer to each other
		c.AddChain(k.chain(ch))
		known[ch.Name] = true
	}
	for _, ch := range chains {
		k.addRules(c, ch)
	}
	if err := k.send(c, removed, added); err != nil {
		return err
	}
	for _, name := range f.chains { // after what referred to them
		if !known[name] {
			c.DelChain(&nftables.Chain{Table: k.table, Name: name})
		}
	}
	return nil
}
