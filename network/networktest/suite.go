// Package networktest has what every implementation of network.Network must do, as
// a suite of tests, and an implementation in memory that fails on demand.
package networktest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"

	"github.com/coracle-project/coracle/network"
)

// Harness is an implementation under test.
type Harness struct {
	Network network.Network
	// NewNetNS returns the path of a network namespace and what ends it, which
	// the test may call early.
	NewNetNS func(t *testing.T) (path string, end func())
	// Leases returns the number of pods that have anything of the network, after
	// all that goes on in the background is done.
	Leases func(t *testing.T) int
}

// Suite runs the tests, each on an implementation of its own.
func Suite(t *testing.T, harness func(t *testing.T) Harness) {
	for _, tc := range []struct {
		name string
		test func(*testing.T, Harness)
	}{
		{"setup gives an address", setupGivesAnAddress},
		{"setup twice gives the same", setupTwice},
		{"pods have different addresses", differentAddresses},
		{"teardown frees everything", teardownFrees},
		{"teardown of an unknown pod", teardownUnknown},
		{"teardown after the namespace has gone", teardownWithoutNamespace},
		{"setup after teardown", setupAfterTeardown},
		{"setup of what is no namespace leaves nothing", setupWithoutNamespace},
		{"setup with a bad pod id leaves nothing", setupBadID},
		{"setup with bad ports leaves nothing", setupBadPorts},
		{"many at once", manyAtOnce},
		{"one pod at once", onePodAtOnce},
		{"ready", ready},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, harness(t)) })
	}
}

func (h Harness) pod(t *testing.T, id string) network.Pod {
	t.Helper()
	path, _ := h.NewNetNS(t)
	return network.Pod{ID: id, Name: "name-" + id, Namespace: "default", UID: "uid-" + id, NetNS: path}
}

func (h Harness) setup(t *testing.T, p network.Pod) network.Result {
	t.Helper()
	r, err := h.Network.Setup(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.teardown(t, p) })
	return r
}

func (h Harness) teardown(t *testing.T, p network.Pod) {
	t.Helper()
	if err := h.Network.Teardown(context.WithoutCancel(t.Context()), p); err != nil {
		t.Error(err)
	}
}

func (h Harness) want(t *testing.T, leases int) {
	t.Helper()
	if n := h.Leases(t); n != leases {
		t.Errorf("%d pods have something of the network, want %d", n, leases)
	}
}

func setupGivesAnAddress(t *testing.T, h Harness) {
	r := h.setup(t, h.pod(t, "a"))
	if len(r.IPs) == 0 || !r.IPs[0].IsValid() || r.IPs[0].IsUnspecified() {
		t.Errorf("addresses %v", r.IPs)
	}
	h.want(t, 1)
}

func setupTwice(t *testing.T, h Harness) {
	p := h.pod(t, "a")
	first, second := h.setup(t, p), h.setup(t, p)
	if fmt.Sprint(first) != fmt.Sprint(second) {
		t.Errorf("%v, then %v", first, second)
	}
	h.want(t, 1)
}

func differentAddresses(t *testing.T, h Harness) {
	seen := map[netip.Addr]string{}
	for i := range 5 {
		id := fmt.Sprint("p", i)
		for _, ip := range h.setup(t, h.pod(t, id)).IPs {
			if seen[ip] != "" {
				t.Errorf("%s and %s have %s", seen[ip], id, ip)
			}
			seen[ip] = id
		}
	}
}

func teardownFrees(t *testing.T, h Harness) {
	p := h.pod(t, "a")
	h.setup(t, p)
	h.teardown(t, p)
	h.want(t, 0)
	h.teardown(t, p)
	h.want(t, 0)
}

func teardownUnknown(t *testing.T, h Harness) {
	h.teardown(t, network.Pod{ID: "nobody", NetNS: filepath.Join(t.TempDir(), "none")})
	h.teardown(t, network.Pod{ID: "nobody"})
}

func teardownWithoutNamespace(t *testing.T, h Harness) {
	path, end := h.NewNetNS(t)
	p := network.Pod{ID: "a", NetNS: path}
	h.setup(t, p)
	end()
	h.teardown(t, p)
	h.want(t, 0)
}

func setupAfterTeardown(t *testing.T, h Harness) {
	p := h.pod(t, "a")
	h.setup(t, p)
	h.teardown(t, p)
	if r := h.setup(t, p); len(r.IPs) == 0 {
		t.Error("no address")
	}
	h.want(t, 1)
}

func setupWithoutNamespace(t *testing.T, h Harness) {
	for name, path := range map[string]string{"missing": filepath.Join(t.TempDir(), "none"), "a directory": t.TempDir(), "empty": ""} {
		if _, err := h.Network.Setup(t.Context(), network.Pod{ID: "a", NetNS: path}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	h.want(t, 0)
}

func setupBadID(t *testing.T, h Harness) {
	path, _ := h.NewNetNS(t)
	for _, id := range []string{"", "..", ".hidden", "a/b", "a\x00b"} {
		if _, err := h.Network.Setup(t.Context(), network.Pod{ID: id, NetNS: path}); err == nil {
			t.Errorf("id %q: no error", id)
		}
		if err := h.Network.Teardown(t.Context(), network.Pod{ID: id, NetNS: path}); err == nil {
			t.Errorf("id %q: no error from Teardown", id)
		}
	}
	h.want(t, 0)
}

func setupBadPorts(t *testing.T, h Harness) {
	p := h.pod(t, "a")
	for name, tc := range map[string]struct {
		ports []network.PortMapping
		kind  error
	}{
		"protocol":          {[]network.PortMapping{{Protocol: "icmp", HostPort: 80, ContainerPort: 80}}, network.ErrConfig},
		"no container port": {[]network.PortMapping{{Protocol: "tcp", HostPort: 80}}, network.ErrConfig},
		"twice": {[]network.PortMapping{
			{Protocol: "tcp", HostPort: 80, ContainerPort: 80},
			{Protocol: "tcp", HostPort: 80, ContainerPort: 81, HostIP: netip.MustParseAddr("127.0.0.1")},
		}, network.ErrPortInUse},
	} {
		p.Ports = tc.ports
		if _, err := h.Network.Setup(t.Context(), p); !errors.Is(err, tc.kind) {
			t.Errorf("%s: error %v, want %v", name, err, tc.kind)
		}
	}
	h.want(t, 0)
}

func manyAtOnce(t *testing.T, h Harness) {
	const n = 8
	pods := make([]network.Pod, n)
	for i := range pods {
		pods[i] = h.pod(t, fmt.Sprint("p", i))
	}
	var mu sync.Mutex
	seen := map[netip.Addr]bool{}
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() {
			r, err := h.Network.Setup(t.Context(), p)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, ip := range r.IPs {
				if seen[ip] {
					t.Errorf("%s given twice", ip)
				}
				seen[ip] = true
			}
		})
	}
	wg.Wait()
	h.want(t, n)
	for _, p := range pods {
		wg.Go(func() { h.teardown(t, p) })
	}
	wg.Wait()
	h.want(t, 0)
}

func onePodAtOnce(t *testing.T, h Harness) {
	p := h.pod(t, "a")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if i%2 == 0 {
				if _, err := h.Network.Setup(t.Context(), p); err != nil {
					t.Error(err)
				}
			} else {
				h.teardown(t, p)
			}
		})
	}
	wg.Wait()
	h.teardown(t, p)
	h.want(t, 0)
}

func ready(t *testing.T, h Harness) {
	if err := h.Network.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}
