package nftable

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Found is what the kernel has of a table.
type Found struct {
	Layout   bool             // it has the maps and sets that are wanted, and no others
	Elements map[Place]string // values
	Dynamic  []Element        // of dynamic sets
	chains   []string
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
	chains, err := k.conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, k.again(err)
	}
	for _, c := range chains {
		if c.Table.Name == k.table.Name {
			f.chains = append(f.chains, c.Name)
		}
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
