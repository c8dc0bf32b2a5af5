package conntrack

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// inside runs f in a network namespace of its own, in which port 80 is translated to port 8080, and
// the connection tracker works: it does where rules ask for it.
func inside(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		done <- func() error {
			ns, err := netns.New()
			if err != nil {
				return fmt.Errorf("make a network namespace (as root): %w", err)
			}
			defer ns.Close()
			lo, err := netlink.LinkByName("lo")
			if err == nil {
				err = netlink.LinkSetUp(lo)
			}
			if err != nil {
				return err
			}
			out, err := exec.CommandContext(t.Context(), "nft", "add table inet test; "+
				"add chain inet test out { type nat hook output priority -100; }; add rule inet test out tcp dport 80 redirect to 8080").CombinedOutput()
			if err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return f()
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// connected connects to a port of an address, and returns from where.
func connected(t *testing.T, address, port string) (from netip.AddrPort, err error) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "8080"))
	if err != nil {
		return from, err
	}
	t.Cleanup(func() { _ = l.Close() })
	conn, err := net.Dial("tcp", net.JoinHostPort(address, port))
	if err != nil {
		return from, err
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.LocalAddr().(*net.TCPAddr).AddrPort(), nil
}

func TestEntries(t *testing.T) {
	inside(t, func() error {
		four, err := connected(t, "127.0.0.1", "80")
		if err != nil {
			return err
		}
		six, err := connected(t, "::1", "80")
		if err != nil {
			return err
		}
		tracker, err := Open()
		if err != nil {
			return err
		}
		defer tracker.Close()
		for pass, want := range []int{2, 0} {
			found := 0
			err = tracker.List(func(e *Entry) bool {
				from := e.Original.Source
				if from != four && from != six {
					return true
				}
				found++
				if !e.Answered || e.Original.Protocol != unix.IPPROTO_TCP || e.Original.Destination.Port() != 80 ||
					e.Reply.Source != netip.AddrPortFrom(e.Original.Destination.Addr(), 8080) || e.Reply.Destination != from {
					t.Errorf("entry %+v", e)
				}
				for _, want := range []bool{true, false} {
					if deleted, err := tracker.Delete(e); deleted != want || err != nil {
						t.Errorf("deleted %t, want %t, %v", deleted, want, err)
					}
				}
				return true
			})
			if err != nil || found != want {
				t.Errorf("pass %d: %d entries, %v", pass, found, err)
			}
		}
		return nil
	})
}

func TestEntriesToAddresses(t *testing.T) {
	inside(t, func() error {
		from := map[netip.Addr]netip.AddrPort{}
		for _, address := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
			var err error
			if from[netip.MustParseAddr(address)], err = connected(t, address, "8080"); err != nil {
				return err
			}
		}
		tracker, err := Open()
		if err != nil {
			return err
		}
		defer tracker.Close()
		first, second, six := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("::1")
		none := netip.MustParseAddr("127.0.0.3")
		for _, each := range []bool{false, true} {
			for _, addresses := range [][]netip.Addr{{first}, {six}, {first, second}, {first, six}, {none, second, six}, {none}, {}} {
				want := map[netip.AddrPort]netip.Addr{}
				for _, a := range addresses {
					if a != none {
						want[from[a]] = a
					}
				}
				found := map[netip.AddrPort]netip.Addr{}
				if err := tracker.listTo(addresses, each, func(e *Entry) bool {
					found[e.Original.Source] = e.Reply.Source.Addr()
					return true
				}); err != nil || !maps.Equal(found, want) {
					t.Errorf("to %v, each %t: %v, want %v, %v", addresses, each, found, want, err)
				}
			}
			calls := 0
			if err := tracker.listTo([]netip.Addr{first, six}, each, func(*Entry) bool {
				calls++
				return false
			}); err != nil || calls != 1 {
				t.Errorf("each %t: %d entries, though the first ended it, %v", each, calls, err)
			}
		}
		if n, err := Count(); err != nil || n < len(from) {
			t.Errorf("%d entries, %v", n, err)
		}
		return nil
	})
}
