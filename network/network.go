// Package network connects pods: through the CNI plugins that a node operator has
// configured, or, with nothing configured, through a built-in network (netlink and
// nftables, no program executed). It knows no CRI types.
//
// A pod's network namespace is made and pinned elsewhere (internal/nspin); this
// package gets its path. What it did for a pod is recorded in one JSON file per
// pod under its state directory before it is done, so Teardown and Recover can
// undo it after a crash.
//
// # On disk (under Config.StateDir, on a tmpfs)
//
//	bridge/<pod id>.json   a pod of the built-in network (the name is from earlier releases)
//	cni/<pod id>.json      what a pod was set up with by CNI, configuration included
//	cni-cache/             libcni's own
//	subnets.json           what SetPodCIDR was last given
//	forwarded.json         for which families forwarding was turned on
//	damaged/               unreadable records, kept for the operator and no longer used
//
// A record has a version. A record of a newer daemon stops Start (*recordfile.NewerError). A pod
// keeps its network if its record is damaged or lost: the record is rebuilt (adopt.go,
// cniadopt.go).
//
// # Example
//
//	m := network.New(network.Config{StateDir: dir})
//	_ = m.Start(ctx)                    // reads the records
//	_ = m.Recover(ctx, podIDs)          // takes down what no pod claims
//	r, _ := m.Setup(ctx, network.Pod{ID: id, NetNS: path})
//	…                                   // the pod has r.IPs
//	_ = m.Teardown(ctx, network.Pod{ID: id})
package network

import (
	"context"
	"errors"
	"net/netip"

	"github.com/coracle-project/coracle/network/cni"
)

// Kinds of error, for errors.Is.
var (
	ErrConfig    = cni.ErrConfig
	ErrExhausted = errors.New("no free address in the pod range")
	ErrPortInUse = errors.New("host port already in use")
)

// Pod is what a network needs to know of a pod.
type Pod struct {
	ID, Name, Namespace, UID string
	// NetNS is the path of the pinned network namespace.
	NetNS string
	Ports []PortMapping
	// CgroupParent, Annotations with their bandwidth limits, and DNS are passed to CNI plugins
	// that ask for them.
	CgroupParent string
	Annotations  map[string]string
	DNS          DNS
	// Sysctls are those that the pod's configuration asks for, by their dotted names. They are in
	// force.
	Sysctls map[string]string
}

// DNS is how a pod resolves names, as its configuration says; all empty if it says nothing.
type DNS struct{ Servers, Searches, Options []string }

// PortMapping sends a port of the host to a port of the pod.
type PortMapping struct {
	Protocol                string // "tcp", "udp" or "sctp"
	ContainerPort, HostPort uint16
	HostIP                  netip.Addr // the zero Addr means any address
}

// Result is what a pod got.
type Result struct {
	// IPs, the primary one first.
	IPs []netip.Addr `json:"ips"`
	// DNS servers, searches and options that a CNI plugin gave; often empty.
	DNSServers, DNSSearches, DNSOptions []string
}

// Network is one way to connect pods; Manager picks the one in force. The
// built-in network, the CNI driver and a fault-injecting test double implement it
// and pass the suite in networktest.
type Network interface {
	// Setup connects the pod; on error nothing is left behind. Calling it
	// again for a pod that is connected returns the same result.
	Setup(ctx context.Context, p Pod) (Result, error)
	// Teardown disconnects the pod and frees its addresses and host ports.
	// It succeeds if the pod is unknown or its namespace already gone.
	Teardown(ctx context.Context, p Pod) error
	// Ready reports why pods cannot be connected now, nil if they can.
	Ready(ctx context.Context) error
}
