package why

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// ndots is from how many dots on a name is tried as it is first: what the kubelet writes into pods'
// resolv.conf.
const ndots = 5

// candidates are the whole names that a resolver tries for a name, in order.
func (a *Asker) candidates(name string, from *source) []string {
	if strings.HasSuffix(name, ".") {
		return []string{strings.ToLower(name)}
	}
	name = strings.ToLower(name)
	if !a.asksCluster(from) {
		return []string{name + "."}
	}
	var searched []string
	for _, suffix := range []string{from.pod.Namespace + ".svc." + a.Domain, "svc." + a.Domain, a.Domain} {
		searched = append(searched, name+"."+suffix+".")
	}
	if strings.Count(name, ".") >= ndots {
		return append([]string{name + "."}, searched...)
	}
	return append(searched, name+".")
}

// asksCluster says whether the source's names are resolved by the cluster's DNS.
func (a *Asker) asksCluster(from *source) bool {
	if from.pod == nil {
		return false
	}
	switch from.pod.Spec.DNSPolicy {
	case corev1.DNSClusterFirstWithHostNet:
		return true
	case corev1.DNSDefault, corev1.DNSNone:
		return false
	}
	return !from.pod.Spec.HostNetwork
}

// byName is a DNS name, which is resolved as the source does it.
func (a *Asker) byName(ctx context.Context, asked, name string, port wantedPort, from *source) (*destination, error) {
	tried := a.candidates(name, from)
	cluster := a.Names != nil && a.asksCluster(from)
	for _, whole := range tried {
		var addresses []netip.Addr
		var notes []string
		if cluster {
			found, ours, err := []netip.Addr(nil), false, error(nil)
			whole, notes, found, ours, err = a.follow(whole)
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
		addresses, err := a.Elsewhere(ctx, strings.TrimSuffix(whole, "."))
		if err != nil || len(addresses) == 0 {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("destination %q: resolve %s: %w", asked, whole, ctx.Err())
			}
			continue
		}
		d, err := a.ofName(asked, whole, addresses, port)
		if err == nil {
			d.notes = append(notes, append([]string{whole + " was resolved by this node's name servers"}, d.notes...)...)
		}
		return d, err
	}
	why := "tried " + strings.Join(tried, ", ")
	if !a.asksCluster(from) {
		why += "; the source does not ask the cluster's DNS"
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
