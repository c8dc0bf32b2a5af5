package nftable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

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
		"priority": {
			usual, hooked(nftables.ChainTypeFilter, nftables.ChainHookOutput, -7),
			"type filter hook output priority -7; policy accept;",
		},
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

// Listings come in few large answers.
func TestLargeAnswers(t *testing.T) {
	s := testnet.New(t)
	s.Run("nft add table inet many")
	s.Run("nft add set inet many numbers { type mark ; }")
	var elements strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&elements, "add element inet many numbers { %d }\n", i)
	}
	file := filepath.Join(t.TempDir(), "elements")
	if err := os.WriteFile(file, []byte(elements.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Run("nft -f " + file)
	// first is the size of the first answer to a question for all elements.
	first := func(prepare func(*netlink.Conn) error) (size int) {
		s.Within(func() {
			socket, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = socket.Close() }()
			names, err := netlink.MarshalAttributes([]netlink.Attribute{
				{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte("many\x00")}, {Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte("numbers\x00")},
			})
			if err = errors.Join(err, prepare(socket)); err != nil {
				t.Error(err)
				return
			}
			_, err = socket.Send(netlink.Message{
				Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM, Flags: netlink.Request | netlink.Dump},
				Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, names...),
			})
			if err != nil {
				t.Error(err)
				return
			}
			size = received(t, socket)
		})
		return size
	}
	if size := first(func(*netlink.Conn) error { return nil }); size == 0 || size > os.Getpagesize() {
		t.Errorf("without it an answer has %d bytes, so this shows nothing", size)
	}
	if size := first(largeAnswers); size < 16<<10 {
		t.Errorf("an answer has %d bytes", size)
	}
}

// received is the size of the next message of a socket, of many parts or not.
func received(t *testing.T, socket *netlink.Conn) (size int) {
	t.Helper()
	raw, err := socket.SyscallConn()
	if err != nil {
		t.Error(err)
		return 0
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		size, _, failed = unix.Recvfrom(int(fd), make([]byte, 64<<10), 0)
		return !errors.Is(failed, unix.EAGAIN)
	})
	if err = errors.Join(err, failed); err != nil {
		t.Error(err)
	}
	return size
}
