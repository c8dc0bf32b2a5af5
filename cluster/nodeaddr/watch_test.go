package nodeaddr

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// back waits until lo has both held addresses and the kernel delivers what is sent to them, and
// returns how long that took. A new address of IPv6 gets its route later than it is listed: a
// worker of the kernel adds it.
func (m *machine) back() time.Duration {
	m.t.Helper()
	began := time.Now()
	for m.held() < len(held) || !m.local() {
		if time.Since(began) > time.Minute {
			m.t.Fatalf("only %v are there", m.left())
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// held is how many of the held addresses the machine has.
func (m *machine) held() (n int) {
	for _, each := range m.left() {
		if !strings.HasPrefix(each, "coracle-addr-") {
			n++
		}
	}
	return n
}

// local reports whether the machine takes what is sent to the held addresses.
func (m *machine) local() bool {
	m.t.Helper()
	all := true
	m.do(func() {
		for _, addr := range held {
			out, err := exec.Command("ip", "route", "get", addr.String()).CombinedOutput()
			if err != nil && len(out) == 0 {
				m.t.Errorf("ip route get %s: %v", addr, err)
			}
			all = all && strings.HasPrefix(string(out), "local ")
		}
	})
	return all
}

// Another program removes the addresses, one or all that lo has. They come back, the log says so
// once, and pods reach them as before.
func TestRemovedAddressesComeBack(t *testing.T) {
	node := newMachine(t)
	pod := node.link("pod", 2)
	node.ip("link set pod group 1073741825")
	port, arrived := node.listen()
	release, err := node.hold(held...)
	if err != nil {
		t.Fatal(err)
	}
	const said = "another program removed an address"
	if n := node.log.Count(said); n != 0 {
		t.Errorf("the log tells of %d addresses, and none was removed", n)
	}
	for round := range 3 {
		node.ip("addr del 10.96.0.10/32 dev lo")
		node.ip("addr del fd00:96::a/128 dev lo")
		t.Logf("back after %v", node.back())
		node.ip("addr flush dev lo")
		t.Logf("back after %v", node.back())
		if round == 0 {
			if got := pod.reaches(port, 2, arrived); len(got) != len(held) {
				t.Errorf("the pod reaches only %v", got)
			}
		}
	}
	if n := node.log.Count(said); n != len(held) {
		t.Errorf("the log tells %d times of %d addresses", n, len(held))
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	if left := node.left(); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

// IPv6 that is switched off takes its addresses from lo, and takes none until it is on again.
func TestAddressesComeBackWithIPv6(t *testing.T) {
	node := newMachine(t)
	release, err := node.hold(held...)
	if err != nil {
		t.Fatal(err)
	}
	off := func(value string) {
		node.do(func() {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6", []byte(value), 0); err != nil {
				t.Error(err)
			}
		})
	}
	off("1")
	node.log.Await(t, "cannot be put back")
	if node.log.Count("net.ipv6.conf.lo.disable_ipv6=0") != 1 || node.held() != 1 {
		t.Errorf("%v are there", node.left())
	}
	off("0")
	node.back()
	if err := release(); err != nil {
		t.Error(err)
	}
}

// Changes of other interfaces, which each pod that starts makes, do not wake the watch.
func TestOnlyChangesOfLoAreHeard(t *testing.T) {
	node := newMachine(t)
	var w *watch
	node.do(func() {
		k, err := dialKernel()
		if err != nil {
			t.Error(err)
			return
		}
		if w, err = newWatch(k, nil, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	if w == nil {
		return
	}
	defer func() { _, _ = w.close(), w.kernel.Close() }()
	node.link("pod", 2)
	node.ip("addr add 10.9.9.9/32 dev lo") // the only one to hear of
	if err := w.heard.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	messages, err := w.heard.Receive()
	if err != nil || len(messages) != 1 || messages[0].Header.Type != netlink.HeaderType(unix.RTM_NEWADDR) ||
		!strings.Contains(string(messages[0].Data), "\x0a\x09\x09\x09") {
		t.Errorf("%v, %v", messages, err)
	}
}
