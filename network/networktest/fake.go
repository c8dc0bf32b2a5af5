package networktest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/coracle-project/coracle/network"
)

// Fake is a network in memory that connects nothing. Its zero value is ready.
type Fake struct {
	// Fail, if not nil, is asked before each "setup", "teardown" and "ready"; an
	// error makes the call fail with it. It may block.
	Fail func(ctx context.Context, op, podID string) error

	mu   sync.Mutex
	pods map[string]network.Result
	next uint32
}

var _ network.Network = (*Fake)(nil)

func (f *Fake) fail(ctx context.Context, op, podID string) error {
	if f.Fail == nil {
		return nil
	}
	return f.Fail(ctx, op, podID)
}

// Setup implements network.Network. Addresses are of 192.0.2.0/24, then beyond.
func (f *Fake) Setup(ctx context.Context, p network.Pod) (network.Result, error) {
	if err := checkPod(p); err != nil {
		return network.Result{}, err
	}
	if info, err := os.Stat(p.NetNS); err != nil || info.IsDir() {
		return network.Result{}, fmt.Errorf("network namespace %q: not there", p.NetNS)
	}
	if err := f.fail(ctx, "setup", p.ID); err != nil {
		return network.Result{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r, ok := f.pods[p.ID]; ok {
		return r, nil
	}
	f.next++
	r := network.Result{IPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(2 + f.next>>8), byte(f.next)})}}
	if f.pods == nil {
		f.pods = map[string]network.Result{}
	}
	f.pods[p.ID] = r
	return r, nil
}

func checkPod(p network.Pod) error {
	if p.ID == "" || p.ID[0] == '.' || strings.ContainsAny(p.ID, "/\x00") {
		return fmt.Errorf("invalid pod id %q", p.ID)
	}
	seen := map[string]bool{}
	for _, m := range p.Ports {
		port := fmt.Sprint(m.Protocol, m.HostPort)
		switch {
		case m.HostPort == 0:
		case m.Protocol != "tcp" && m.Protocol != "udp" && m.Protocol != "sctp", m.ContainerPort == 0:
			return fmt.Errorf("%w: port %+v", network.ErrConfig, m)
		case seen[port]:
			return fmt.Errorf("%w: %d", network.ErrPortInUse, m.HostPort)
		default:
			seen[port] = true
		}
	}
	return nil
}

// Teardown implements network.Network.
func (f *Fake) Teardown(ctx context.Context, p network.Pod) error {
	if err := checkPod(network.Pod{ID: p.ID}); err != nil {
		return err
	}
	if err := f.fail(ctx, "teardown", p.ID); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, p.ID)
	return nil
}

// Ready implements network.Network.
func (f *Fake) Ready(ctx context.Context) error { return f.fail(ctx, "ready", "") }

// Recover forgets the pods that are not claimed.
func (f *Fake) Recover(ctx context.Context, claimed []string) error {
	if err := f.fail(ctx, "recover", ""); err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, id := range claimed {
		keep[id] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.pods {
		if !keep[id] {
			delete(f.pods, id)
		}
	}
	return nil
}

// Pods returns how many pods are set up.
func (f *Fake) Pods() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.pods)
}
