package rules

import (
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// chains counts the table's chains that the kernel has.
func (n *node) chains(prefix string) int {
	n.t.Helper()
	return strings.Count(n.Run("nft list table inet "+tableName), "\tchain "+prefix)
}

// A Service whose affinity or number of endpoints changes leaves no chain behind for each
// combination it had.
func TestUnusedKindsAreFreed(t *testing.T) {
	n := newNode(t)
	table := n.open()
	table.Log = slog.New(slog.DiscardHandler)
	var all []netip.AddrPort
	for i := range 40 {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 245, 0, byte(i + 1)}), 80))
	}
	all[0] = to(n.b.IPv4)
	set := func(endpoints int, affinity time.Duration) {
		t.Helper()
		change := Change{Ports: map[Key]*Port{"x": {
			Protocol: unix.IPPROTO_TCP, Backends: []Backend{{Endpoints: all[:endpoints], Affinity: affinity}},
			Frontends: []Frontend{{Addr: netip.MustParseAddr(service4), Port: 80}},
		}}}
		if err := table.Apply(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	const changes = 2000
	var before int64
	for i := range changes {
		if i == changes/10 {
			before = heap()
		}
		set(i%len(all)+1, time.Duration(i+1)*time.Second)
		if i%100 == 0 {
			if got := n.chains("stick"); got > spareKinds+1 || got == 0 {
				t.Fatalf("%d chains for affinity after %d changes", got, i+1)
			}
		}
	}
	if grown := heap() - before; grown > 256<<10 {
		t.Errorf("%d KiB more are in use after %d changes", grown>>10, changes)
	}
	if got := len(table.kinds[0].sticky); got > spareKinds+1 {
		t.Errorf("%d kinds are known", got)
	}
	for i := range 2 * len(all) {
		set(i%len(all)+1, 0)
	}
	if got := n.chains("pick4"); got > commonCount+spareKinds+1 || got == 0 {
		t.Errorf("%d chains for numbers of endpoints", got)
	}
	set(1, time.Hour)
	n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String())
	table = n.reopen(table)
	if got := n.chains("stick") + n.chains("pick"); got < 2 {
		t.Fatalf("%d chains before the restart, so the test shows nothing", got)
	}
	set(1, time.Hour)
	if stick, pick := n.chains("stick"), n.chains("pick"); stick != 1 || pick != 2*commonCount {
		t.Errorf("after a restart: %d chains for affinity, %d without, want 1 and those for few endpoints:\n%s", stick, pick,
			n.Run("nft list table inet "+tableName))
	}
	if out := n.Run("nft list map inet " + tableName + " kinds4"); strings.Count(out, "goto stick") != 1 ||
		strings.Count(out, "goto pick") != commonCount {
		t.Errorf("left is:\n%s", out)
	}
	n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String())
}

// A kind that is given up and taken again at once, or in the next change, keeps its chain.
func TestKindsAreUsedAgain(t *testing.T) {
	k, f := newKinds(), families[0]
	first, created := k.take(f, 3, time.Hour, false)
	if !created || first&markSticky == 0 {
		t.Fatalf("%#x, %v", first, created)
	}
	for range 10 {
		other, _ := k.take(f, 4, time.Hour, false)
		k.release(f, first)
		if gone := k.free(0); len(gone) != 0 || other == first {
			t.Fatalf("%v are freed, %#x", gone, other)
		}
		again, created := k.take(f, 3, time.Hour, false)
		if created || again != first {
			t.Fatalf("%#x, %v", again, created)
		}
		k.release(f, other)
		k.free(spareKinds)
	}
	k.release(f, first)
	if gone := k.free(0); len(gone) != 1 || gone[0].Value != "stick4_4_3600" {
		t.Errorf("%v are freed of which no packet may have one", gone)
	}
	if gone := k.free(0); len(gone) != 1 || gone[0].Value != "stick4_3_3600" {
		t.Errorf("%v are freed", gone)
	}
	// More combinations than fit have no affinity, but endpoints.
	for i := range maxSticky + 5 {
		if kind, _ := k.take(f, 2, time.Duration(i+1)*time.Second, false); (kind&markSticky == 0) != (i >= maxSticky) {
			t.Fatalf("kind %#x for combination %d", kind, i)
		}
	}
	if got := fmt.Sprint(len(k.all(f)), k[0].users[2]); got != fmt.Sprint(maxSticky+commonCount, 5) {
		t.Error(got)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what has a finalizer, and pools
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
