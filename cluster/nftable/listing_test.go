package nftable

import (
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// An upgrade may hook a chain otherwise. The kernel cannot change that of a chain, so the table is
// made again, also where the rules are the same.
func TestChainIsHookedOtherwise(t *testing.T) {
	rules := [][]expr.Any{Drop}
	jumped := Chain{Name: "c", Rules: rules}
	hooked := func(kind nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority) Chain {
		return Chain{Name: "c", Kind: kind, Hook: hook, Priority: priority, Rules: rules}
	}
	usual := hooked(nftables.ChainTypeFilter, nftables.ChainHookOutput, 5)
	for name, c := range map[string]struct {
		before, after Chain
		want          string
	}{
		"priority":   {usual, hooked(nftables.ChainTypeFilter, nftables.ChainHookOutput, -7), "type filter hook output priority -7; policy accept;"},
		"hook":       {usual, hooked(nftables.ChainTypeFilter, nftables.ChainHookInput, 5), "type filter hook input priority 5; policy accept;"},
		"type":       {usual, hooked(nftables.ChainTypeRoute, nftables.ChainHookOutput, 5), "type route hook output priority 5; policy accept;"},
		"now hooked": {jumped, usual, "type filter hook output priority 5; policy accept;"},
		"no more":    {usual, jumped, "chain c {\n\t\tdrop"},
	} {
		t.Run(name, func(t *testing.T) {
			n := testnet.New(t)
			for i, chain := range []Chain{c.before, c.after, c.after} {
				var differed bool
				table := open(t, &n.Space, &plain{ahead: never, chain: &chain})
				n.Within(func() {
					table.wanted = true
					var err error
					if differed, err = table.Repair(t.Context()); err != nil {
						t.Error(err)
					}
				})
				if differed != (i < 2) {
					t.Errorf("start %d: differed %t", i, differed)
				}
				out := n.Run("nft -y list chain inet test c")
				if (i > 0) != strings.Contains(out, c.want) || !strings.Contains(out, "drop") {
					t.Errorf("start %d: %s", i, out)
				}
				if err := table.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A listing during which someone changes another table may lack a chain. It is read again, and a
// chain that is still not listed gets its rules once.
func TestListingThatLacksAChain(t *testing.T) {
	n := testnet.New(t)
	table := open(t, &n.Space, &plain{ahead: never, rules: [][]expr.Any{Drop}})
	if err := table.Apply(t.Context(), table.Batch()); err != nil {
		t.Fatal(err)
	}
	want := n.Run("nft list table inet test")
	for changes, reads := range map[int]int{0: 1, 1: 2, 2: 3, 9: 3} {
		got := 0
		f, err := table.kernel.settled(func() (*Found, error) {
			if got < changes {
				n.Run("nft add table ip another")
				n.Run("nft delete table ip another")
			}
			got++
			return table.kernel.read()
		})
		if err != nil || got != reads || f.chains["hooked"].notes == "" {
			t.Errorf("%d changes: read %d times, %v: %v", changes, got, err, f)
		}
	}
	f, err := table.kernel.list()
	if err != nil {
		t.Fatal(err)
	}
	delete(f.chains, "hooked")
	table.found = f
	if differed, err := table.Repair(t.Context()); err != nil || !differed {
		t.Errorf("%v, differed %t", err, differed)
	}
	if got := n.Run("nft list table inet test"); got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
}
