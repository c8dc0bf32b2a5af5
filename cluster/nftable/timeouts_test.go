package nftable

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// hasty is a layout with timeouts, unless it lacks them.
type hasty struct {
	*plain
	lacks   bool
	adapted []error
}

func (h *hasty) Timeouts() []Timeouts {
	if h.lacks {
		return nil
	}
	return []Timeouts{{Name: "hasty", Seconds: map[TCPState]uint32{Closed: 7, LastAck: 13}}}
}

func (h *hasty) Adapt(err error) bool {
	h.adapted = append(h.adapted, err)
	h.rules = nil
	return len(h.adapted) == 1
}

func TestTimeouts(t *testing.T) {
	n := testnet.New(t)
	layout := &hasty{plain: &plain{ahead: never, rules: [][]expr.Any{SetTimeouts("hasty")}}}
	table := open(t, &n.Space, layout)
	if err := table.Apply(t.Context(), table.Batch()); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		out := n.Run("nft list table inet test")
		for _, want := range []string{"ct timeout set \"hasty\"", "protocol tcp", "last_ack : 13", "close : 7"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %s:\n%s", when, want, out)
			}
		}
	}
	check("at first")
	for _, change := range []string{
		"flush chain inet test hooked", "flush ruleset", "flush chain inet test hooked; delete ct timeout inet test hasty",
	} {
		n.Run("nft " + change)
		if differed, err := table.Repair(t.Context()); err != nil || !differed {
			t.Errorf("%s: %v, differed %v", change, err, differed)
		}
		check(change)
	}
	if differed, err := table.Repair(t.Context()); err != nil || differed {
		t.Errorf("without a change: %v, differed %v", err, differed)
	}
}

// A kernel that does not know timeouts refuses the object, and what refers to it. This one refuses
// the second, as the first is not there.
func TestTimeoutsThatTheKernelLacks(t *testing.T) {
	n := testnet.New(t)
	layout := &hasty{plain: &plain{ahead: never, rules: [][]expr.Any{SetTimeouts("hasty")}}, lacks: true}
	table := open(t, &n.Space, layout)
	var err error
	n.Within(func() { err = table.Apply(t.Context(), table.Batch()) }) // it opens its socket again
	if err != nil || len(layout.adapted) != 1 || !errors.Is(layout.adapted[0], unix.ENOENT) {
		t.Errorf("%v, adapted %v", err, layout.adapted)
	}
}
