package why

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// resolver is how a source resolves names: what its resolv.conf says.
type resolver struct {
	servers  []string
	searches []string
	ndots    int  // from how many dots on a name is tried as it is first
	cluster  bool // the first server, which the others replace if it fails, is the cluster's DNS
}

// The resolver's limits and default of resolv.conf(5).
const defaultNdots, mostNdots = 1, 15

// resolverOf returns a source's. Of sources that are no pods nothing is known but that they do not
// ask the cluster's DNS.
func (a *Asker) resolverOf(ctx context.Context, from *source) (r resolver, err error) {
	if from.pod == nil {
		return r, nil
	}
	conf, err := a.PodDNS(ctx, from.pod)
	if err != nil {
		return r, fmt.Errorf("find the name servers of pod %s: %w", from.Name, err)
	}
	r = resolver{servers: conf.Servers, searches: conf.Searches, ndots: defaultNdots}
	for _, option := range conf.Options {
		if text, ok := strings.CutPrefix(option, "ndots:"); ok {
			if n, err := strconv.Atoi(text); err == nil {
				r.ndots = min(max(n, 0), mostNdots)
			}
		}
	}
	if len(r.servers) > 0 {
		first, err := netip.ParseAddr(r.servers[0])
		r.cluster = err == nil && slices.Contains(a.ClusterDNS, first)
	}
	return r, nil
}

// candidates are the whole names that a resolver tries for a name, in order.
func (r resolver) candidates(name string) []string {
	name = strings.ToLower(name)
	if strings.HasSuffix(name, ".") {
		return []string{name}
	}
	var searched []string
	for _, suffix := range r.searches {
		if suffix = strings.Trim(strings.ToLower(suffix), "."); suffix != "" {
			searched = append(searched, name+"."+suffix+".")
		}
	}
	if strings.Count(name, ".") >= r.ndots {
		return append([]string{name + "."}, searched...)
	}
	return append(searched, name+".")
}

// asked says which servers a source asks that does not ask the cluster's DNS.
func (r resolver) asked() string {
	if len(r.servers) == 0 {
		return "the source does not ask the cluster's DNS"
	}
	return "the source does not ask the cluster's DNS, but " + strings.Join(r.servers, ", ")
}

// byName is a DNS name, which is resolved as the source does it.
func (a *Asker) byName(ctx context.Context, asked, name string, port wantedPort, from *source) (*destination, error) {
	r, err := a.resolverOf(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("destination %q: %w", asked, err)
	}
	tried := r.candidates(name)
	for _, whole := range tried {
		var notes []string
		if a.Names != nil && r.cluster {
			last, followed, found, ours, err := a.follow(whole)
			whole, notes = last, followed
			switch {
			case err != nil:
				return nil, fmt.Errorf("destination %q: %w", asked, err)
			case ours && len(found) == 0:
				continue
			case ours:
				d, err := a.ofName(asked, whole, found, port)
				if err == nil {
					d.notes = append(notes, d.notes...)
				}
				return d, err
			}
		}
		// A pod's resolver has added the domains to search in; of another source, the node's does.
		outside := whole
		if from.pod == nil {
			outside = strings.TrimSuffix(whole, ".")
		}
		addresses, err := a.Elsewhere(ctx, outside)
		if err != nil || len(addresses) == 0 {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("destination %q: resolve %s: %w", asked, whole, ctx.Err())
			}
			continue
		}
		notes = append(notes, whole+" was resolved by this node's name servers")
		if from.pod != nil && !r.cluster {
			notes = append(notes, r.asked()+", which may answer something else")
		}
		d, err := a.ofName(asked, whole, addresses, port)
		if err == nil {
			d.notes = append(notes, d.notes...)
		}
		return d, err
	}
	why := "tried " + strings.Join(tried, ", ")
	if !r.cluster {
		why += "; " + r.asked()
	}
	return nil, fmt.Errorf("destination %q: the name does not exist: %s; svc/NAME and pod/NAME name objects", asked, why)
}

// maxAliases bounds the ExternalName Services that are followed for a name, as the DNS does.
const maxAliases = 8

// follow looks a whole name up in the cluster's DNS, and what it is another name of. It returns the
// last name, what was followed, and false if that name is not the cluster's.
func (a *Asker) follow(whole string) (last string, notes []string, found []netip.Addr, ours bool, err error) {
	last = whole
	for range maxAliases {
		found, alias, ours := a.Names.Lookup(last)
		if !ours || alias == "" {
			return last, notes, found, ours, nil
		}
		notes = append(notes, last+" is another name of "+alias)
		last = strings.ToLower(alias)
	}
	return last, nil, nil, true, fmt.Errorf("resolve %s: more than %d Services of type ExternalName lead to each other", whole, maxAliases)
}

// ofName is a name that was resolved. Of a Service's, all ports are known.
func (a *Asker) ofName(asked, whole string, addresses []netip.Addr, port wantedPort) (*destination, error) {
	d := &destination{End: End{Asked: asked, Kind: "name", Name: whole, Addresses: addresses}}
	for _, address := range addresses {
		ports, err := a.portsAt(asked, address, port)
		if err != nil {
			return nil, err
		}
		for _, p := range ports {
			d.targets = append(d.targets, target{netip.AddrPortFrom(address, p.address.Port()), p.protocol})
		}
	}
	return d, nil
}

// portsAt are the ports that are wanted of an address: those of its Service or pod, or the number.
func (a *Asker) portsAt(asked string, address netip.Addr, port wantedPort) ([]target, error) {
	all, err := a.Services.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		for _, ip := range s.Spec.ClusterIPs {
			if ip != address.String() {
				continue
			}
			d, err := a.ofService(context.Background(), asked, s, port, &source{})
			if err != nil {
				return nil, err
			}
			return onePerPort(d.targets, address), nil
		}
	}
	if pod := a.podAt(address); pod != nil {
		d, err := a.ofPod(asked, pod, port)
		if err != nil {
			return nil, err
		}
		return onePerPort(d.targets, address), nil
	}
	t, err := port.require(asked)
	return []target{t}, err
}

// onePerPort leaves of some targets those at an address.
func onePerPort(all []target, address netip.Addr) (some []target) {
	for _, t := range all {
		if t.address.Addr() == address {
			some = append(some, t)
		}
	}
	return some
}
