// Package nodes makes machines within this one, so that a cluster of several nodes can run here:
// each is a network and a mount namespace, on one link with the others and with this machine.
//
//	                  this machine (node 1): nodes6443  10.84.0.1
//	                        │            │
//	node 2: eth0 ── nodes6443-2      nodes6443-3 ── node 3: eth0
//	        10.84.0.2                               10.84.0.3
//
// A machine's namespaces are pinned by mounts in [Network.Dir], so they outlive each process in
// them, as a machine does. [Network.Make] makes what is missing and [Network.Remove] removes what
// is there: after a crash at any point, either of them continues. Programs come to a machine with
// [Network.Exec].
package nodes

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Most is the largest number of nodes on one machine, and Bits what a network has at least for
// their addresses.
const (
	Most = 16
	Bits = 5
)

// Network is the link that the nodes share, and the namespaces on it.
type Network struct {
	// Cluster is a number that no other cluster of this machine has: the API server's port. The names
	// of links and tables have it.
	Cluster int
	// Prefixes are the networks of the nodes' addresses, at most one of a family.
	Prefixes []netip.Prefix
	// Dir is where namespaces are pinned: DIR/N/net and DIR/N/mnt. A reboot may lose it.
	Dir string
}

// Address returns the addresses of node n, the machine itself being node 1.
func (w Network) Address(n int) []netip.Addr {
	var all []netip.Addr
	for _, p := range w.Prefixes {
		a := p.Masked().Addr()
		for range n {
			a = a.Next()
		}
		all = append(all, a)
	}
	return all
}

// Bridge is the name of the link on this machine, and Link that of the link to a node.
func (w Network) Bridge() string    { return "nodes" + strconv.Itoa(w.Cluster) }
func (w Network) Link(n int) string { return fmt.Sprintf("%s-%d", w.Bridge(), n) }

// uplink is the name of a node's link in its own namespace.
const uplink = "eth0"

// Make makes nodes 2 to count, and what connects them, as far as it is missing. Mounts below the
// directories in hidden stay out of the nodes' mount namespaces: those of this machine's own pods.
func (w Network) Make(count int, hidden ...string) error {
	if err := w.connect(); err != nil {
		return fmt.Errorf("network of the nodes: %w", err)
	}
	if err := w.translate(); err != nil {
		return fmt.Errorf("way out for the nodes: %w", err)
	}
	for n := 2; n <= count; n++ {
		if err := w.pin(n, hidden); err != nil {
			return fmt.Errorf("namespaces of node %d: %w", n, err)
		}
		if err := w.attach(n); err != nil {
			return fmt.Errorf("link of node %d: %w", n, err)
		}
	}
	return nil
}

// Remove removes all nodes. Their processes must have ended: what they had mounted goes with the
// namespaces. Forwarding stays on if Make has turned it on, and with it the rules that keep this
// machine's own networks apart.
func (w Network) Remove() error {
	var errs []error
	if links, err := netlink.LinkList(); err == nil || errors.Is(err, netlink.ErrDumpInterrupted) {
		for _, l := range links {
			if name := l.Attrs().Name; name == w.Bridge() || strings.HasPrefix(name, w.Bridge()+"-") {
				errs = append(errs, ignore(netlink.LinkDel(l), unix.ENODEV))
			}
		}
	} else {
		errs = append(errs, err)
	}
	errs = append(errs, w.translateNothing(), w.unpin())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the nodes' namespaces and links: %w", err)
	}
	return nil
}

// Has says whether node n has its namespaces.
func (w Network) Has(n int) bool { return pinned(w.file(n, "net")) && pinned(w.file(n, "mnt")) }

// Exists says whether there is anything for Remove.
func (w Network) Exists() bool {
	if _, err := netlink.LinkByName(w.Bridge()); err == nil {
		return true
	}
	_, err := os.Lstat(w.Dir)
	return !errors.Is(err, fs.ErrNotExist)
}

func (w Network) file(n int, kind string) string {
	return filepath.Join(w.Dir, strconv.Itoa(n), kind)
}

// ignore is err, unless it is one of those that are expected.
func ignore(err error, expected ...error) error {
	for _, e := range expected {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}
