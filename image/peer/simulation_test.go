package peer

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
)

// simulated is what a node of a simulation has.
type simulated struct {
	mu     sync.Mutex
	states map[digest.Digest]State
}

func (s *simulated) set(blob digest.Digest, state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.states[blob] = state
}

func (s *simulated) State(_ string, blob digest.Digest) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states[blob]
}

func (s *simulated) OpenBlob(context.Context, string, digest.Digest) (io.ReadCloser, int64, error) {
	return nil, 0, ErrNone
}

func (s *simulated) WriteLayer(context.Context, string, digest.Digest, func(int64) io.Writer) error {
	return ErrNone
}

// In clusters of any size a registry sends each blob at most 1.2 times, however many of the nodes
// pull, at once or one after the other. The nodes are real, the network and the registry are not.
func TestDownloadsOfManyNodes(t *testing.T) {
	const blobs = 3
	for _, test := range []struct {
		nodes, pull int
		stagger     time.Duration
	}{
		{100, 100, 0}, {100, 100, time.Second}, {100, 40, 0}, {100, 5, time.Second}, {300, 20, 0},
	} {
		t.Run(fmt.Sprintf("%d of %d in %s", test.pull, test.nodes, test.stagger), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				downloads := simulate(t, test.nodes, test.pull, blobs, test.stagger)
				t.Logf("%d downloads of %d blobs", downloads, blobs)
				if downloads*10 > blobs*12 {
					t.Errorf("%d downloads of %d blobs", downloads, blobs)
				}
			})
		})
	}
}

// simulate has some of the nodes of a cluster pull an image, and counts the registry's blobs.
func simulate(t *testing.T, nodes, pull, blobs int, stagger time.Duration) (downloads int) {
	rnd := rand.New(rand.NewPCG(1, uint64(nodes*1000+pull)))
	var mu sync.Mutex // guards rnd and downloads
	upTo := func(d time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(rnd.Int64N(int64(d) + 1))
	}
	var all []Node
	swarms, stocks := map[string]*Swarm{}, map[string]*simulated{}
	for i := range nodes {
		all = append(all, Node{fmt.Sprintf("node-%d", i), fmt.Sprintf("192.0.2.1:%d", i+1)})
	}
	for i, self := range all {
		stock := &simulated{states: map[digest.Digest]State{}}
		s := New(stock, slog.New(slog.DiscardHandler))
		s.take(Settings{Self: self.Name, Peers: append(append([]Node{}, all[:i]...), all[i+1:]...)})
		s.ask = func(n *node, _ context.Context, q question) (answer, error) {
			time.Sleep(upTo(10 * time.Millisecond))
			a := swarms[n.Name].answerTo(self.Name, q, time.Now())
			time.Sleep(upTo(10 * time.Millisecond))
			return a, nil
		}
		swarms[self.Name], stocks[self.Name] = s, stock
	}
	var image []digest.Digest
	for i := range blobs {
		image = append(image, digest.FromString(fmt.Sprint(i)))
	}
	var done sync.WaitGroup
	for _, i := range rnd.Perm(nodes)[:pull] {
		done.Go(func() {
			name := all[i].Name
			time.Sleep(upTo(stagger))
			p := swarms[name].Pull(repository, image)
			defer p.End()
			var arriving sync.WaitGroup
			for _, blob := range image {
				arriving.Go(func() {
					for {
						src, err := p.Next(t.Context(), blob, true)
						if err != nil {
							t.Error(err)
							return
						}
						claimed := false
						if src == nil {
							if claimed, err = p.Claim(t.Context(), blob, true); err != nil || !claimed {
								continue
							}
							mu.Lock()
							downloads++
							mu.Unlock()
						}
						stocks[name].set(blob, Arriving)
						time.Sleep(time.Second)
						stocks[name].set(blob, Whole)
						p.Release(blob, true)
						return
					}
				})
			}
			arriving.Wait()
		})
	}
	done.Wait()
	return downloads
}
