package peer

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
)

// Of the nodes that ask for a blob, the first ones and those whose turn it would be are told; what
// nodes ask for is kept within bounds, and forgotten.
func TestSightings(t *testing.T) {
	s, now := &sightings{}, time.Unix(1000, 0)
	const blob = "sha256:1"
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("node-%d", i))
		s.note(repository, blob, names[i], now)
	}
	best := slices.SortedFunc(slices.Values(names[2:]), func(a, b string) int {
		return map[bool]int{true: -1, false: 1}[weight(blob, a) > weight(blob, b)]
	})
	got := s.note(repository, blob, names[0], now)
	for _, want := range []string{names[1], best[0], best[1]} {
		if !slices.Contains(got, want) {
			t.Errorf("%q lacks %s", got, want)
		}
	}
	if len(got) != 3 {
		t.Errorf("%q are told", got)
	}
	for i := range 2 * maxSighted {
		s.note(repository, fmt.Sprint(i), "node", now)
	}
	if len(s.byBlob) > maxSighted {
		t.Errorf("%d blobs are kept", len(s.byBlob))
	}
	later := now.Add(sightedFor + time.Second)
	s.note(repository, blob, "new", now)
	if got := s.note(repository, blob, "newer", later); len(got) != 0 {
		t.Errorf("later, %q are told", got)
	}
	if len(s.byBlob) != 1 {
		t.Errorf("later, %d blobs are kept", len(s.byBlob))
	}
}

// A node that is named by a slow one is asked with a time limit of its own. Who does not exist is
// not asked, however many names an answer has.
func TestNamedNodesAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(&simulated{}, slog.New(slog.DiscardHandler))
		var peers []Node
		for i := range 3 * maxAsked {
			peers = append(peers, Node{fmt.Sprintf("node-%d", i), fmt.Sprintf("192.0.2.1:%d", i+1)})
		}
		s.take(Settings{Self: "self", Peers: peers})
		blob := digest.FromString("x")
		p := s.Pull(repository, []digest.Digest{blob})
		defer p.End()
		first := slices.Clone(p.asked)
		var mu sync.Mutex
		asked := map[string]int{}
		s.ask = func(n *node, ctx context.Context, q question) (answer, error) {
			mu.Lock()
			asked[n.Name]++
			mu.Unlock()
			a := answer{States: []State{None}}
			switch {
			case n == first[0]: // as slow as can be, and it says more than it may
				time.Sleep(askLimit - time.Millisecond)
				for _, other := range peers {
					a.Others = append(a.Others, "no-"+other.Name, other.Name)
				}
			case slices.Contains(first, n):
			default:
				select {
				case <-time.After(time.Second):
					a.States[0] = Whole
				case <-ctx.Done():
					return answer{}, ctx.Err()
				}
			}
			return a, nil
		}
		src, err := p.Next(t.Context(), blob, false)
		if err != nil || src == nil || slices.Contains(first, src.n) {
			t.Errorf("the blob comes from %v, %v: a node that was named has it", src, err)
		}
		if len(asked) <= maxAsked || len(asked) > maxAsked+maxFound {
			t.Errorf("%d nodes are asked", len(asked))
		}
		for name, times := range asked {
			if times != 1 {
				t.Errorf("%s is asked %d times", name, times)
			}
		}
	})
}
