package doctor

import "github.com/coracle-project/coracle/cmd/coracle/kubesocket"

// Network is what pods' packets meet on this node.
type Network struct {
	// Subnets are the ranges of pods' addresses, if the built-in network is used.
	Subnets   []string
	Firewalls []Firewall
	// LegacyUnread says that there are rules of iptables-legacy, and why they could not be read.
	LegacyUnread string
	// Tracked of at most TrackedMax connections; TrackedMax is 0 if the kernel tracks none.
	Tracked, TrackedMax int
	// Uplink is the interface with the default route; Name is empty if there is none.
	Uplink Link
	// PodLinks are the host's ends of pods' links.
	PodLinks []Link
	// MTU is network.mtu, 0 if that is not set.
	MTU int
	// Forwards4 and Forwards6 say whether the kernel forwards packets; Forwards6 is true where it
	// has no IPv6.
	Forwards4, Forwards6 bool
	// Bridged4 and Bridged6 say that packets between ports of a bridge cross the hooks of IPv4 and
	// IPv6 (br_netfilter).
	Bridged4, Bridged6 bool
	// NodePorts are those that Services have; Listeners are what listens in the range of node
	// ports.
	NodePorts []NodePort
	Listeners []Listener
	Err       string // what could not be looked at
}

// Firewall is a chain that drops packets that the node forwards for its pods, or those that its
// pods send to the node itself, unless a rule lets them through.
type Firewall struct {
	// Manager is the program whose chain it is: "firewalld", "ufw", "docker", "iptables",
	// "iptables-legacy", or "" if that cannot be told.
	Manager string
	Table   string // "ip filter"
	Chain   string
	// Keeps is what of the node pods do not reach by it, in words; "" for a chain of the hook
	// forward.
	Keeps string
	// Family is "IPv4" or "IPv6" if only such packets are dropped, and it is not known whether pods
	// have such addresses.
	Family string
}

// Link is a network interface.
type Link struct {
	Name string
	MTU  int
}

// NodePort is a port of the node that leads to a Service.
type NodePort struct {
	Protocol string // "tcp"
	Port     uint16
}

// Listener is a process that waits for connections or datagrams on an address that others reach.
type Listener struct {
	NodePort
	Address string
	Process string // its name; empty if it could not be found
}

// Cluster is the cluster process, if one runs here.
type Cluster struct {
	Parts []kubesocket.Part
	Err   string // why it did not answer
	// NotAllowed says that this user may not ask it.
	NotAllowed bool
}
