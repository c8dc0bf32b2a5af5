package nftable

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Found is what the kernel has of a table.
type Found struct {
	Layout   bool             // it has the maps and sets that are wanted, and no others
	Elements map[Place]string // values
	Dynamic  []Element        // of dynamic sets
	chains   map[string]chainState
	made     bool // Replace has just made it
}

// chainState is what is compared of a chain.
type chainState struct {
	hook  string // type, hook and priority; empty for a chain that others jump to
	notes string // the policy, and the rules' notes
}

// largeAnswers has the kernel list with 32 kB in each answer, its limit, instead of less than a
// page. For each answer it walks over all that it has sent of a set before: with 450,000 elements,
// small answers take half a minute. It goes by the largest buffer that any answer of the socket was
// read with (netlink_recvmsg in net/netlink/af_netlink.c), so one is read with a large buffer.
func largeAnswers(socket *netlink.Conn) error {
	if _, err := socket.Send(askGeneration()); err != nil {
		return fmt.Errorf("ask for large answers of nftables: %w", err)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var received error
	err = raw.Read(func(fd uintptr) bool {
		_, _, received = unix.Recvfrom(int(fd), make([]byte, 32<<10), 0)
		return !errors.Is(received, unix.EAGAIN)
	})
	if err = errors.Join(err, received); err != nil {
		return fmt.Errorf("ask for large answers of nftables: %w", err)
	}
	return nil
}

// list reads the table. The kernel's listing may skip a chain when someone changes another table
// meanwhile, so it is read again then.
func (k *kernel) list() (*Found, error) { return k.settled(k.read) }

// settled reads until nothing changes meanwhile, but not forever: fill can do with what lacks a
// chain.
func (k *kernel) settled(read func() (*Found, error)) (*Found, error) {
	const most = 3
	for times := 1; ; times++ {
		before, err := k.generation()
		if err != nil {
			return nil, err
		}
		f, err := read()
		if err != nil {
			return nil, err
		}
		if after, err := k.generation(); err != nil || after == before || times == most {
			return f, err
		}
	}
}

// read is one listing. A table that has other maps and sets than are wanted is as good as none.
func (k *kernel) read() (*Found, error) {
	f := &Found{Elements: map[Place]string{}}
	if _, err := k.conn.ListTableOfFamily(k.table.Name, nftables.TableFamilyINet); errors.Is(err, unix.ENOENT) {
		return f, nil
	} else if err != nil {
		return nil, k.again(err)
	}
	exist, err := k.conn.GetSets(k.table)
	if err != nil {
		return nil, k.again(err)
	}
	exist = slices.DeleteFunc(exist, func(s *nftables.Set) bool { return s.Anonymous })
	for _, s := range k.sets {
		if !slices.ContainsFunc(exist, func(e *nftables.Set) bool { return sameSet(e, s) }) {
			return f, nil
		}
	}
	if len(exist) != len(k.sets) {
		return f, nil
	}
	if f.chains, err = k.chainStates(); err != nil {
		return nil, err
	}
	for i, s := range k.sets {
		elements, err := k.conn.GetSetElements(s)
		if err != nil {
			return nil, k.again(fmt.Errorf("set %s: %w", s.Name, err))
		}
		for _, e := range elements {
			value := string(e.Val)
			if isVerdicts(s) {
				value = verdictChain(e.Val)
			}
			if s.Dynamic {
				f.Dynamic = append(f.Dynamic, Element{Set: i, Key: string(e.Key), Value: value})
			} else {
				f.Elements[Place{i, string(e.Key), string(e.KeyEnd)}] = value
			}
		}
	}
	f.Layout = true
	return f, nil
}

// sameSet compares a set of the kernel with one that is wanted. The nftables package (0.3.0) does
// not tell the type of the key of a map of verdicts.
func sameSet(is, want *nftables.Set) bool {
	return is.Name == want.Name && is.IsMap == want.IsMap && is.Interval == want.Interval && is.HasTimeout == want.HasTimeout &&
		is.Dynamic == want.Dynamic &&
		(isVerdicts(want) || is.KeyType.Bytes == want.KeyType.Bytes && is.DataType.Bytes == want.DataType.Bytes)
}

// verdictChain is the chain of a verdict's attributes.
func verdictChain(data []byte) string {
	attributes, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return ""
	}
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_VERDICT_CHAIN {
			return attributes.String()
		}
	}
	return ""
}

// chainStates reads the chains.
func (k *kernel) chainStates() (map[string]chainState, error) {
	chains, err := k.conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, k.again(err)
	}
	states := map[string]chainState{}
	for _, c := range chains {
		if c.Table.Name == k.table.Name {
			states[c.Name] = stateOf(c)
		}
	}
	text := appendText([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, unix.NFTA_RULE_TABLE, k.table.Name)
	messages, err := k.socket.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   text,
	})
	if err != nil {
		return nil, k.again(fmt.Errorf("rules: %w", err))
	}
	for _, m := range messages {
		attributes, err := netlink.NewAttributeDecoder(m.Data[min(4, len(m.Data)):])
		if err != nil {
			return nil, fmt.Errorf("rules: %w", err)
		}
		chain, note := "", "of someone else"
		for attributes.Next() {
			switch attributes.Type() {
			case unix.NFTA_RULE_CHAIN:
				chain = attributes.String()
			case unix.NFTA_RULE_USERDATA:
				note = string(attributes.Bytes())
			}
		}
		state := states[chain]
		state.notes += note // in the order in which packets pass them
		states[chain] = state
	}
	return states, nil
}

// noteOf is what a rule carries so that it is known again: the kernel shows some rules in another
// form than they were sent. nft does not show it, and a rule that nft makes in place of one has
// none.
func noteOf(rule []expr.Any) ([]byte, error) {
	const kind = 0xc0 // of no one else (libnftnl/udata.h)
	sum := fnv.New64a()
	for _, e := range rule {
		data, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			return nil, fmt.Errorf("rule: %w", err)
		}
		_, _ = sum.Write(data)
	}
	return sum.Sum([]byte{kind, byte(sum.Size())}), nil
}

// stateOf is that of a chain without rules.
func stateOf(c *nftables.Chain) (s chainState) {
	if c.Hooknum != nil && c.Priority != nil {
		s.hook = fmt.Sprintf("%s at hook %d with priority %d", c.Type, *c.Hooknum, *c.Priority)
	}
	if c.Policy != nil {
		s.notes = fmt.Sprintf("policy %d,", *c.Policy)
	}
	return s
}

// state is that of a chain that is wanted.
func (k *kernel) state(c Chain) (chainState, error) {
	var s chainState
	if c.Hook != nil {
		s = stateOf(k.chain(c))
	}
	all := []byte(s.notes)
	for _, r := range c.Rules {
		note, err := noteOf(r)
		if err != nil {
			return s, fmt.Errorf("chain %s: %w", c.Name, err)
		}
		all = append(all, note...)
	}
	s.notes = string(all)
	return s, nil
}
