package policy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/coracle-project/coracle/cluster/policy/rules"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// listed is what the kernel has of the table. The lines do not depend on the numbers of classes and
// identities: they have what a class allows, and the addresses of an identity, instead.
func listed(t *testing.T, s *testnet.Space) []string {
	t.Helper()
	l := lister{t: t, table: &nftables.Table{Name: testTable, Family: nftables.TableFamilyINet}, sets: map[string][]nftables.SetElement{}}
	s.Within(l.read)
	return l.lines()
}

type lister struct {
	t      *testing.T
	table  *nftables.Table
	sets   map[string][]nftables.SetElement
	chains []string
}

func (l *lister) read() {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		l.t.Error(err)
		return
	}
	defer conn.CloseLasting()
	sets, err := conn.GetSets(l.table)
	if err != nil {
		l.t.Error(err)
	}
	for _, s := range sets {
		if l.sets[s.Name], err = conn.GetSetElements(s); err != nil {
			l.t.Errorf("set %s: %v", s.Name, err)
		}
	}
	chains, err := conn.ListChainsOfTableFamily(l.table.Family)
	if err != nil {
		l.t.Error(err)
	}
	for _, c := range chains {
		if c.Table.Name == l.table.Name {
			rules, err := conn.GetRules(l.table, c)
			if err != nil {
				l.t.Error(err)
			}
			l.chains = append(l.chains, fmt.Sprintf("%s with %d rules", c.Name, len(rules)))
		}
	}
}

func (l *lister) lines() (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	members := map[uint32][]string{} // by identity
	for _, family := range []string{"4", "6"} {
		for _, e := range l.sets["ident"+family] {
			n := binary.NativeEndian.Uint32(e.Val)
			members[n] = append(members[n], address(e.Key))
		}
		for _, name := range []string{"isolated", "self"} {
			for _, e := range l.sets[name+family] {
				add("%s%s %s", name, family, address(e.Key))
			}
		}
	}
	for _, all := range members {
		slices.Sort(all)
		add("identity %s", all)
	}
	for _, direction := range []string{"in", "out"} {
		classes := l.classes(direction, members)
		for _, e := range l.sets["classes_"+direction] {
			n := binary.NativeEndian.Uint32(e.Key)
			if n > rules.MaxClass {
				add("unknown %s", direction)
				continue
			}
			add("class %s %s", direction, classes[n])
			chain := fmt.Sprintf("%s_%d with 2 rules", direction, n)
			if !slices.Contains(l.chains, chain) {
				l.t.Errorf("there is no chain %s", chain)
			}
			l.chains = slices.DeleteFunc(l.chains, func(c string) bool { return c == chain })
		}
		for _, family := range []string{"4", "6"} {
			for _, e := range l.sets[direction+family] {
				add("%s %s %s", direction, address(e.Key), classes[binary.NativeEndian.Uint32(e.Val)])
			}
		}
	}
	for _, e := range l.sets["links"] {
		add("links %x", e.Key)
	}
	lines = append(lines, l.chains...) // those that do not belong to a class
	slices.Sort(lines)
	return lines
}

// classes says what each class of a direction allows.
func (l *lister) classes(direction string, members map[uint32][]string) map[uint32]string {
	parts := map[uint32][]string{}
	for name, elements := range l.sets {
		kind, _, _ := strings.Cut(name, "_")
		if !strings.HasPrefix(name, kind+"_"+direction) || kind == "classes" {
			continue
		}
		for _, e := range elements {
			both := binary.NativeEndian.Uint32(e.Key)
			class, identity := both>>20, both&rules.MaxIdent
			end := []byte(nil)
			if len(e.KeyEnd) > 4 {
				end = e.KeyEnd[4:]
			}
			parts[class] = append(parts[class], fmt.Sprintf("%s %s %x %x", name, members[identity], e.Key[4:], end))
		}
	}
	classes := map[uint32]string{0: "free"}
	for class, all := range parts {
		slices.Sort(all)
		classes[class] = strings.Join(all, ", ")
	}
	return classes
}

func address(key []byte) string {
	a, _ := netip.AddrFromSlice(key)
	if !a.IsValid() { // two of them
		return fmt.Sprintf("%x", key)
	}
	return a.String()
}
