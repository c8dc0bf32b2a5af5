package policy

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// seedVariable makes TestKills repeat what it did with a seed.
const seedVariable = "CORACLE_TEST_SEED"

// traffic is what a friend and an attacker send to a victim all the time.
type traffic struct {
	t         *testing.T
	forbidden atomic.Bool // what the attacker sends from now on

	tries, greetings, passed atomic.Int64  // sent by the attacker, received of the friend, received though forbidden
	greeted, attacked        chan struct{} // received of the friend, and what is not forbidden of the attacker
}

func startTraffic(t *testing.T, friend, attacker, victim *testnet.Space) *traffic {
	t.Helper()
	x := &traffic{t: t, greeted: make(chan struct{}, 1), attacked: make(chan struct{}, 1)}
	var listener net.PacketConn
	var err error
	victim.Within(func() { listener, err = net.ListenPacket("udp4", ":80") })
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		for buf := make([]byte, 10); ; {
			_, from, err := listener.ReadFrom(buf)
			if err != nil {
				return
			}
			x.receive(from.(*net.UDPAddr).AddrPort().Addr().Unmap() == friend.IPv4, buf[0] != 0)
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-heard })
	at := netip.AddrPortFrom(victim.IPv4, 80).String()
	x.send(friend, at, func() byte { return 0 })
	x.send(attacker, at, func() byte {
		x.tries.Add(1)
		if x.forbidden.Load() {
			return 1
		}
		return 0
	})
	return x
}

func (x *traffic) receive(friend, forbidden bool) {
	signal := x.attacked
	switch {
	case friend:
		x.greetings.Add(1)
		signal = x.greeted
	case forbidden:
		x.passed.Add(1)
		return
	}
	select {
	case signal <- struct{}{}:
	default:
	}
}

// send sends datagrams until the test ends.
func (x *traffic) send(from *testnet.Space, to string, next func() byte) {
	x.t.Helper()
	conn, err := from.Dial("udp4", to)
	if err != nil {
		x.t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close()
		tick := time.NewTicker(100 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			_, _ = conn.Write([]byte{next()})
		}
	}()
	x.t.Cleanup(func() { close(stop); <-done })
}

// await waits for a datagram from now on.
func (x *traffic) await(received chan struct{}, otherwise string) {
	x.t.Helper()
	select {
	case <-received: // perhaps of some time ago
	default:
	}
	select {
	case <-received:
	case <-time.After(testnet.Patience):
		x.t.Fatal(otherwise + ": the test shows nothing")
	}
}

// The process is killed at random moments while policies and pods change, also while it starts.
// What is forbidden never passes, what is allowed does, and the table of the next process equals
// one that is made from nothing.
func TestKills(t *testing.T) {
	const rounds = 6
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s=%d repeats this", seedVariable, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	node, other := testnet.New(t), testnet.New(t)
	victim, friend, attacker := node.Pod("victim"), node.Pod("friend"), node.Pod("attacker")
	w := newWorld(random, victim, friend, attacker)

	x := startTraffic(t, friend, attacker, victim)
	x.await(x.greeted, "without rules, the friend does not reach the victim")
	x.await(x.attacked, "without rules, the attacker does not reach the victim")
	k := startKeeper(t, node, w)
	k.settled()
	x.forbidden.Store(true)
	for round := range rounds {
		tried, greetings := x.tries.Load(), x.greetings.Load()
		deadline := time.After(time.Duration(random.IntN(60)) * time.Millisecond)
		changes := 0
		for killing := false; !killing; changes++ {
			k.tell(w.change())
			select {
			case <-deadline:
				killing = true
			default:
			}
		}
		k.kill()
		if random.IntN(3) == 0 { // another one, while it starts
			k = startKeeper(t, node, w)
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond) // what the seed says, not a wait
			k.kill()
		}
		k = startKeeper(t, node, w)
		k.settled()
		has, want := listed(t, &node.Space), compiled(t, other, w)
		if !slices.Equal(has, want) {
			t.Errorf("round %d: after the restart\n%q\nand from nothing\n%q", round, without(has, want), without(want, has))
		}
		if len(want) < 5 {
			t.Errorf("round %d: the table has only %q", round, want)
		}
		tried, greetings = x.tries.Load()-tried, x.greetings.Load()-greetings
		if tried < 10 || greetings == 0 || changes == 0 {
			t.Errorf("round %d: %d changes, %d attempts, %d datagrams of the friend: the test shows little", round, changes, tried, greetings)
		}
		t.Logf("round %d: %d changes, %d attempts, %d lines", round, changes, tried, len(want))
	}
	k.kill()
	if n := x.passed.Load(); n != 0 {
		t.Errorf("%d of %d datagrams that are forbidden got through", n, x.tries.Load())
	}
	x.forbidden.Store(false)
	var err error
	node.Within(func() { err = Cleanup(testTable) })
	if err != nil {
		t.Error(err)
	}
	x.await(x.attacked, "without rules, the attacker does not reach the victim any more")
}

func without(a, b []string) (left []string) {
	there := map[string]bool{}
	for _, s := range b {
		there[s] = true
	}
	for _, s := range a {
		if !there[s] {
			left = append(left, s)
		}
	}
	return left
}

// compiled is the table of a process that has had nothing before, on another node.
func compiled(t *testing.T, node *testnet.Node, w *world) []string {
	t.Helper()
	f, err := newFed()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range w.all() {
		f.take(o)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go node.Within(func() { done <- f.p.Run(ctx) })
	f.settle()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	lines := listed(t, &node.Space)
	node.Within(func() { err = Cleanup(testTable) })
	if err != nil {
		t.Error(err)
	}
	return lines
}
