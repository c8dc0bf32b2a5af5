package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"

	"github.com/coracle-project/coracle/cluster/dns"
	"github.com/coracle-project/coracle/cluster/policy"
	"github.com/coracle-project/coracle/cluster/policy/compile"
	"github.com/coracle-project/coracle/cluster/policy/rules"
	"github.com/coracle-project/coracle/cluster/proxy"
	"github.com/coracle-project/coracle/cluster/why"
)

// whyPath is where this process says what decides about a connection: `coracle why`.
const whyPath = "/why"

// whyPatience bounds an answer: names may have to be resolved by other servers.
const whyPatience = 10 * time.Second

// newAsker answers from the informers of this process. routes, names and policies may be nil.
// PodDNS and ClusterDNS are set by the caller. domain is the cluster's, services the networks
// of Services' addresses.
func newAsker(all informers.SharedInformerFactory, node, domain string, services []netip.Prefix, routes *proxy.Proxy, names *dns.Server,
	policies *policy.Policy,
) *why.Asker {
	core := all.Core().V1()
	a := &why.Asker{
		Pods: core.Pods().Lister(), Nodes: core.Nodes().Lister(), Services: core.Services().Lister(),
		Slices: all.Discovery().V1().EndpointSlices().Lister(),
		Node:   node, Domain: domain, ServiceRanges: services, Elsewhere: resolve, Local: onNode,
	}
	if routes != nil {
		a.Routes = routes
	}
	if names != nil {
		a.Names = names
	}
	if policies != nil {
		a.Policies = decider{policies}
	}
	return a
}

// decider tells what policies decide in the words of package why.
type decider struct{ *policy.Policy }

// Decide implements why.Policy.
func (d decider) Decide(source, destination netip.Addr, protocol byte, port uint16) why.PolicyDecision {
	if onNode(source) || onNode(destination) {
		half := why.Direction{Allowed: true, Because: "traffic between pods and their own node is always allowed"}
		return why.PolicyDecision{Allowed: true, Egress: half, Ingress: half}
	}
	e := d.Explain(rules.Connection{
		Protocol: protocol, Source: netip.AddrPortFrom(source, 0),
		Destination: netip.AddrPortFrom(destination, port),
	})
	return why.PolicyDecision{Allowed: e.Egress.Allowed && e.Ingress.Allowed, Egress: direction(e.Egress), Ingress: direction(e.Ingress)}
}

func direction(h compile.Half) why.Direction {
	names := func(all []types.NamespacedName) (texts []string) {
		for _, n := range all {
			if n.Namespace == "" {
				texts = append(texts, "ClusterNetworkPolicy "+n.Name)
			} else {
				texts = append(texts, n.String())
			}
		}
		return texts
	}
	d := why.Direction{Allowed: h.Allowed, Selecting: names(h.Selecting), Allowing: names(h.Allowing)}
	switch {
	case h.Kind == compile.NoPod:
		d.Because = "this end is no pod"
	case h.Kind == compile.Elsewhere:
		d.Because = "the pod is on another node, which decides"
	case h.Kind == compile.Itself:
		d.Because = "a pod always reaches itself"
	case h.Unplaced:
		d.Because = "the namespace of one of the pods is not known yet, and with it which ClusterNetworkPolicies are about it"
	case h.Ruling != nil && h.Ruling.Accepted == h.Allowed:
		verb := map[bool]string{true: "accepts", false: "denies"}[h.Allowed]
		d.Because = fmt.Sprintf("ClusterNetworkPolicy %s (%s) %s it", h.Ruling.Policy, h.Ruling.Tier, verb)
		if h.Ruling.Rule != "" {
			d.Because += fmt.Sprintf(" by its rule %q", h.Ruling.Rule)
		}
	case !h.Allowed && len(h.Allowing) > 0:
		d.Because = "policies allow it, and the rules are not in force yet or have no room; the policies' Events say more"
	case h.Allowed && len(h.Selecting) > 0 && len(h.Allowing) == 0:
		d.Because = "no policy denies it, and there is no NetworkPolicy for the pod"
	}
	return d
}

// onNode says whether this node has an address itself.
func onNode(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(each net.Addr) bool {
		n, ok := each.(*net.IPNet)
		if !ok {
			return false
		}
		own, _ := netip.AddrFromSlice(n.IP)
		return own.Unmap() == a
	})
}

// resolve asks the node's name servers.
func resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	for i, a := range all {
		all[i] = a.Unmap()
	}
	return all, err
}

// answerWhy answers questions that come as a query: from, to and namespace.
func answerWhy(a *why.Asker) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), whyPatience)
		defer cancel()
		asked := r.URL.Query()
		answer, err := a.Why(ctx, why.Question{Namespace: asked.Get("namespace"), Source: asked.Get("from"), Destination: asked.Get("to")})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answerJSON(w, answer)
	})
}
