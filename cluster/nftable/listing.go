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
	Layout   bool              // it has the maps and sets that are wanted, and no others
	Elements map[Place]string  // values
	Dynamic  []Element         // of dynamic sets
	chains   map[string]string // their rules' notes
	made     bool              // Replace has just made it
}

// list reads the table. A table that has other maps and sets than are wanted is as good as none.
func (k *kernel) list() (*Found, error) {
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
	if f.chains, err = k.rules(); err != nil {
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

// rules returns the notes of each chain's rules.
func (k *kernel) rules() (map[string]string, error) {
	chains, err := k.conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, k.again(err)
	}
	notes := map[string]string{}
	for _, c := range chains {
		if c.Table.Name == k.table.Name {
			notes[c.Name] = ""
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
		notes[chain] += note // in the order in which packets pass them
	}
	return notes, nil
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

// notes are those of a chain's rules.
func (c Chain) notes() (string, error) {
	var all []byte
	for _, r := range c.Rules {
		note, err := noteOf(r)
		if err != nil {
			return "", fmt.Errorf("chain %s: %w", c.Name, err)
		}
		all = append(all, note...)
	}
	return string(all), nil
}
