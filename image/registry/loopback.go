package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"sync"
	"syscall"
)

// The author of a pod chooses the name of its image, and the node connects to the registry in that
// name. With 127.0.0.1:6443/x the node would connect to its own ports, which only the host can
// reach. A name in DNS or a registry's redirect can lead there too. With Config.OnlyListedLoopback,
// the node connects to a loopback address only if the settings list it. The check is of the address
// that is about to be connected to: a name could resolve to another one a moment later.

// errLoopback is a connection to this machine that no setting asks for.
var errLoopback = errors.New(
	"loopback address that the settings do not name; list it as [image.registry.\"host:port\"] or in certs_dirs if it is a registry",
)

// loopbackGuard makes connections. The zero value lets all pass.
type loopbackGuard struct {
	on bool

	mu     sync.Mutex
	listed map[string]bool // host:port
}

// list lets a host of the settings be on loopback.
func (g *loopbackGuard) list(host string) {
	if !g.on {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listed == nil {
		g.listed = map[string]bool{}
		for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
			g.add(proxyHost(os.Getenv(name)))
		}
	}
	g.add(host)
}

func (g *loopbackGuard) add(host string) {
	if host == "" {
		return
	}
	if _, _, err := net.SplitHostPort(host); err == nil {
		g.listed[host] = true
		return
	}
	for _, port := range []string{"80", "443"} {
		g.listed[net.JoinHostPort(trimBrackets(host), port)] = true
	}
}

func trimBrackets(host string) string {
	if n := len(host); n > 1 && host[0] == '[' && host[n-1] == ']' {
		return host[1 : n-1]
	}
	return host
}

// proxyHost is the host of a proxy as the environment names it.
func proxyHost(s string) string {
	if u, err := url.Parse(s); err == nil && u.Host != "" {
		return u.Host
	}
	if u, err := url.Parse("http://" + s); err == nil {
		return u.Host
	}
	return ""
}

// dial connects to address, host:port.
func (g *loopbackGuard) dial(ctx context.Context, d net.Dialer, network, address string) (net.Conn, error) {
	if g.on && !g.allows(address) {
		d.Control = refuseLoopback
	}
	return d.DialContext(ctx, network, address)
}

func (g *loopbackGuard) allows(address string) bool {
	g.list("") // the proxies
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.listed[address]
}

// refuseLoopback is net.Dialer's Control: address is what is connected to.
func refuseLoopback(_, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil || isOwn(a.Addr()) {
		return fmt.Errorf("%s is a %w", address, errLoopback)
	}
	return nil
}

// isOwn says whether connecting to an address reaches this machine, whatever its network: 0.0.0.0
// does too. So does ::%zone, which netip does not take for ::.
func isOwn(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return a.IsLoopback() || a.IsUnspecified()
}

// listHosts lets the hosts of a registry be on loopback that the settings name.
func (c *Client) listHosts(registry string, hosts []Host) {
	_, known := c.cfg.Settings[registry]
	for i := range hosts {
		h := &hosts[i]
		own := h.Host == registry || h.Host == apiHost(registry)
		if known || h.listed || !own {
			c.transports.guard.list(h.Host)
		}
		settings := registry
		if h.mirror {
			settings = h.Host
		}
		for _, trusted := range slices.Clone(c.cfg.Settings[settings].TokenHosts) {
			c.transports.guard.list(trusted)
		}
	}
}
