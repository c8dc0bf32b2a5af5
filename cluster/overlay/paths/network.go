package paths

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/coracle-project/coracle/cluster/nftable"
	"github.com/coracle-project/coracle/cluster/overlay/wireguard"
)

// Config is what the paths of a node depend on besides its peers.
type Config struct {
	// Cluster is a number that no other cluster of this machine has: the API server's port.
	Cluster int
	Node    Node
	// VNI is the tunnels' network, Port their UDP port: the same on all nodes.
	VNI, Port int
	// Encryption is for peers with keys; nil for peers without.
	Encryption *Encryption
	Log        *slog.Logger
}

// Encryption is this node's end of WireGuard.
type Encryption struct {
	Private wireguard.Key
	Port    int // UDP, the same on all nodes
}

// TableOf is the name of the nftables table.
func TableOf(cluster int) string { return fmt.Sprintf("coracle-overlay-%d", cluster) }

// Network keeps the kernel as a Plan says. Its methods are for one goroutine, except Changed. What
// it has made outlives the process, so that a restart interrupts nothing; Remove removes it.
type Network struct {
	Config
	kernel *kernel
	rules  *rules
	watch  *watch
	known  bool // have is what the kernel has
	have   Plan
}

// Open reads nothing yet. The caller must Close the Network.
func Open(c Config) (n *Network, err error) {
	n = &Network{Config: c}
	if n.kernel, err = openKernel(c); err != nil {
		return nil, err
	}
	if n.rules, err = openRules(c); err != nil {
		n.kernel.close()
		return nil, err
	}
	if n.watch, err = newWatch(c, n.rules.table.Changed()); err != nil {
		n.kernel.close()
		return nil, errors.Join(err, n.rules.close())
	}
	return n, nil
}

// Close ends what follows the kernel. The paths stay.
func (n *Network) Close() error {
	n.watch.close()
	n.kernel.close()
	return n.rules.close()
}

// Changed gets a value when someone else has changed what the Plan is about, or what a choice of
// paths depends on: links, addresses or routes of the machine. The caller then calls Apply, perhaps
// with another Plan. Close closes it.
func (n *Network) Changed() <-chan struct{} { return n.watch.changed }

// Apply makes the kernel what the plan says. New ways are there before old ones are taken out.
// After an error the rest of the plan is in force, and the next Apply reads what there is.
func (n *Network) Apply(ctx context.Context, want Plan) (err error) {
	defer func() {
		if err != nil {
			n.known = false
			err = fmt.Errorf("paths to other nodes: %w", err)
		}
	}()
	n.watch.expect(want)
	if n.watch.altered.Swap(false) || !n.known {
		if n.have, err = n.kernel.list(); err != nil {
			return err
		}
		n.watch.devices(n.kernel.index)
	}
	if n.watch.rules.Swap(false) {
		if err = n.rules.repair(ctx); err != nil {
			return err
		}
	}
	if err = n.rules.apply(ctx, n.rules.now.union(want.Filter)); err != nil { // no tunnel without rules
		return err
	}
	errs := []error{n.kernel.make(ctx, n.have, want)}
	n.watch.devices(n.kernel.index)
	errs = append(errs, n.kernel.remove(n.have, want), n.rules.apply(ctx, want.Filter))
	n.known, n.have = true, want
	return errors.Join(errs...)
}

// Seal closes networks of the cluster's pods before there is a Network: what is sent there leaves
// the machine only once there are paths.
func Seal(cluster int, networks []netip.Prefix) error {
	k, err := openKernel(Config{Cluster: cluster})
	if err != nil {
		return err
	}
	defer k.close()
	var errs []error
	for _, p := range networks {
		if err := k.route(p, Route{Closed: true}, k.RouteReplace); err != nil {
			errs = append(errs, fmt.Errorf("close %s for unencrypted packets: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// Remove takes out all that a Network of the cluster has made, the rules last: "coracle down" looks
// for them to see whether there is anything.
func Remove(cluster int) error {
	k, err := openKernel(Config{Cluster: cluster})
	if err != nil {
		return err
	}
	defer k.close()
	have, err := k.list()
	if err == nil {
		err = k.remove(have, New(Node{}, nil))
	}
	if err != nil {
		return fmt.Errorf("remove the paths to other nodes: %w", err)
	}
	return nftable.Remove(TableOf(cluster))
}
