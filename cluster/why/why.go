// Package why says what decides about a connection: which name, which Service, which endpoint and
// which policy.
//
// It answers from the informers that the proxy and the DNS use, by their own functions, so that it
// says what the rules of this node do: proxy.Route, dns.Lookup and Policy. Nothing is sent.
//
// A Question is parsed (end.go) to a source and to what the destination may be. Each address and
// port of the destination becomes a Connection, which a Service, endpoints and policies decide.
package why

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/proxy"
)

// Router is the service proxy.
type Router interface {
	Route(source netip.Addr, destination netip.AddrPort, protocol byte) (*proxy.Route, bool, error)
}

// Resolver is the cluster's DNS. It returns false for names that are not the cluster's; alias is
// the other name of an ExternalName Service.
type Resolver interface {
	Lookup(name string) (addresses []netip.Addr, alias string, ours bool)
}

// Policy is what NetworkPolicies decide.
type Policy interface {
	// Decide is asked for what the rules see: the true source, and the endpoint.
	Decide(source, destination netip.Addr, protocol byte, port uint16) PolicyDecision
}

// PolicyDecision is what policies decide about a connection.
type PolicyDecision struct {
	Allowed bool `json:"allowed"`
	// Egress is decided by policies that select the source, Ingress by those of the destination.
	Egress  Direction `json:"egress"`
	Ingress Direction `json:"ingress"`
}

// Direction is one half of a decision.
type Direction struct {
	Allowed bool `json:"allowed"`
	// Selecting are the policies that select the pod, as NAMESPACE/NAME; without any, everything is
	// allowed.
	Selecting []string `json:"selecting,omitempty"`
	// Allowing are those of them that allow the connection.
	Allowing []string `json:"allowing,omitempty"`
	// Because says why in other cases, such as that the other end is the pod's node.
	Because string `json:"because,omitempty"`
}

// Question is what a user asks.
type Question struct {
	// Namespace is that of names without one.
	Namespace string
	// Source is pod/NAME, NAMESPACE/NAME, node/NAME or an IP address; Destination pod/NAME,
	// svc/NAME, NAMESPACE/NAME, an IP address or a DNS name, and may end with :PORT.
	Source, Destination string
}

// Answer is what decides.
type Answer struct {
	Source      End `json:"source"`
	Destination End `json:"destination"`
	// Connections are one for each address and port of the destination.
	Connections []Connection `json:"connections"`
	// Notes are what else should be known.
	Notes []string `json:"notes,omitempty"`
}

// End is a source or a destination.
type End struct {
	Asked string `json:"asked"`
	// Kind is "pod", "service", "node", "name" or "address".
	Kind string `json:"kind"`
	// Name is NAMESPACE/NAME, or the whole DNS name.
	Name      string       `json:"name,omitempty"`
	Node      string       `json:"node,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// Connection is what happens to one.
type Connection struct {
	// Destination is ADDRESS:PORT, and Protocol "TCP", "UDP" or "SCTP".
	Destination netip.AddrPort `json:"destination"`
	Protocol    string         `json:"protocol"`
	// Service is nil if none has the address.
	Service *Service `json:"service,omitempty"`
	// Endpoints are those that the connection may get first; one, what was asked for, without a
	// Service.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// Verdict is "reached", "partly" if policies deny some endpoints, "denied", "refused" or
	// "dropped".
	Verdict string `json:"verdict"`
	Because string `json:"because,omitempty"`
}

// Service is the part of a Service in a Connection.
type Service struct {
	Name            string `json:"name"` // NAMESPACE/NAME
	Port            string `json:"port,omitempty"`
	Way             string `json:"way"`
	LocalOnly       bool   `json:"localOnly,omitempty"`
	AffinitySeconds int    `json:"affinitySeconds,omitempty"`
	Masquerade      bool   `json:"masquerade,omitempty"`
}

// Endpoint is where a connection ends.
type Endpoint struct {
	Address netip.AddrPort `json:"address"`
	Pod     string         `json:"pod,omitempty"` // NAMESPACE/NAME
	Node    string         `json:"node,omitempty"`
	Used    bool           `json:"used"`
	Because string         `json:"because,omitempty"` // why it is not used
	// Policy is nil if no policies are enforced, or none concern the endpoint.
	Policy *PolicyDecision `json:"policy,omitempty"`
}

// The verdicts.
const (
	Reached = "reached"
	Partly  = "partly"
	Denied  = "denied"
	Refused = "refused"
	Dropped = "dropped"
)

// Asker answers questions. Routes, Names and Policies may be nil: then another program routes
// Services, answers for names, or enforces policies, or none does.
type Asker struct {
	Pods     corelisters.PodLister
	Nodes    corelisters.NodeLister
	Services corelisters.ServiceLister
	Slices   discoverylisters.EndpointSliceLister
	Routes   Router
	Names    Resolver
	Policies Policy
	// Node is this node's name, Domain the cluster's ("cluster.local").
	Node, Domain string
	// Local says whether this node has an address itself, such as that of the cluster's DNS, which
	// its Node object does not tell.
	Local func(netip.Addr) bool
	// ServiceRanges are the networks of Services' addresses. Those that the node has itself are
	// only for the node and its pods.
	ServiceRanges []netip.Prefix
	// PodDNS returns what the resolv.conf of a pod says, by the kubelet's code.
	PodDNS func(context.Context, *corev1.Pod) (*runtimeapi.DNSConfig, error)
	// ClusterDNS are the addresses of the cluster's DNS.
	ClusterDNS []netip.Addr
	// Elsewhere resolves names that are not the cluster's. A final dot says that no domain is to be
	// searched.
	Elsewhere func(ctx context.Context, name string) ([]netip.Addr, error)
}

// Why answers a question. Errors say what is wrong with it.
func (a *Asker) Why(ctx context.Context, q Question) (*Answer, error) {
	source, err := a.source(q)
	if err != nil {
		return nil, err
	}
	destination, err := a.destination(ctx, q, source)
	if err != nil {
		return nil, err
	}
	answer := &Answer{Source: source.End, Destination: destination.End, Notes: destination.notes}
	if source.Node != "" && source.Node != a.Node {
		answer.Notes = append(answer.Notes, fmt.Sprintf("the source is on node %s, and this is what node %s would do", source.Node, a.Node))
	}
	if a.Routes == nil {
		answer.Notes = append(answer.Notes, "another program routes Services: which endpoint a connection gets is not known here")
	}
	if a.Policies == nil {
		answer.Notes = append(answer.Notes, "another program enforces policies, or none does: they are not told here")
	}
	for _, to := range destination.targets {
		from := source.addressFor(to.address.Addr())
		if !from.IsValid() {
			continue // no address of that family
		}
		c, err := a.connection(source, from, to)
		if err != nil {
			return nil, err
		}
		answer.Connections = append(answer.Connections, c)
	}
	if len(answer.Connections) == 0 && len(destination.targets) > 0 {
		return nil, fmt.Errorf("%s has no address of the family of %s", source.Asked, destination.Asked)
	}
	return answer, nil
}

// target is an address and port of a destination.
type target struct {
	address  netip.AddrPort
	protocol byte
}

var protocolNames = map[byte]corev1.Protocol{
	unix.IPPROTO_TCP: corev1.ProtocolTCP, unix.IPPROTO_UDP: corev1.ProtocolUDP,
	unix.IPPROTO_SCTP: corev1.ProtocolSCTP,
}

func numberOf(p corev1.Protocol) byte {
	for number, name := range protocolNames {
		if name == p {
			return number
		}
	}
	return unix.IPPROTO_TCP // the default of an empty field
}

// connection says what happens to one connection.
func (a *Asker) connection(source *source, from netip.Addr, to target) (Connection, error) {
	c := Connection{Destination: to.address, Protocol: string(protocolNames[to.protocol])}
	outside := source.Node != a.Node && a.guarded(to.address.Addr()) // is dropped before Services are looked at
	var route *proxy.Route
	if a.Routes != nil {
		r, ok, err := a.Routes.Route(from, to.address, to.protocol)
		if err != nil {
			return c, err
		}
		if ok {
			route = r
		}
	}
	if route == nil {
		c.Endpoints = []Endpoint{a.endpoint(to.address, true, "")}
		if outside {
			c.Verdict, c.Because = Dropped, onlyNode
		} else {
			a.judge(&c, from, to.protocol)
		}
		return c, nil
	}
	if route.Service.Name != "" {
		c.Service = &Service{
			Name: route.Service.String(), Port: route.Port, Way: route.Way, LocalOnly: route.Local,
			AffinitySeconds: int(route.Affinity.Seconds()), Masquerade: route.Masquerade,
		}
		for _, e := range route.Endpoints {
			c.Endpoints = append(c.Endpoints, a.endpoint(e, true, ""))
		}
		unused, err := a.unused(route, to)
		if err != nil {
			return c, err
		}
		c.Endpoints = append(c.Endpoints, unused...)
	}
	switch {
	case outside:
		c.Verdict, c.Because = Dropped, onlyNode
	case route.Dropped != "":
		c.Verdict, c.Because = Dropped, route.Dropped
	case route.Refused != "":
		c.Verdict, c.Because = Refused, route.Refused
	default:
		a.judge(&c, from, to.protocol)
	}
	return c, nil
}

const onlyNode = "only the node and its pods reach this address"

// guarded says whether an address is one of the node's own in the networks of Services.
func (a *Asker) guarded(address netip.Addr) bool {
	return a.Local(address) && slices.ContainsFunc(a.ServiceRanges, func(r netip.Prefix) bool { return r.Contains(address) })
}

// judge has policies decide about each endpoint that is used, and comes to a verdict.
func (a *Asker) judge(c *Connection, from netip.Addr, protocol byte) {
	used, denied := 0, 0
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		if !e.Used {
			continue
		}
		used++
		if a.Policies == nil {
			continue
		}
		decision := a.Policies.Decide(from, e.Address.Addr(), protocol, e.Address.Port())
		e.Policy = &decision
		if !decision.Allowed {
			denied++
		}
	}
	switch {
	case denied == 0:
		c.Verdict = Reached
	case denied < used:
		c.Verdict, c.Because = Partly, fmt.Sprintf("policies deny %d of %d endpoints", denied, used)
	default:
		c.Verdict, c.Because = Denied, "policies deny it"
	}
}
