package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/dns"
)

// dnsOptions are the flags of the cluster's DNS.
type dnsOptions struct {
	stubs []string
}

func (o *dnsOptions) define(f *pflag.FlagSet) {
	f.StringSliceVar(&o.stubs, "dns-stub-domain", nil, "name servers of a domain that the cluster's DNS asks instead of the node's: `DOMAIN=ADDRESS` such as corp.example=10.0.0.53, or with a port 10.0.0.53:5353; again for further servers")
}

// noDNS as the only address leaves a cluster without DNS.
const noDNS = "none"

// clusterDNS returns the addresses where pods find the cluster's DNS: those of --cluster-dns, or the tenth of the
// Services' network, as is usual.
func (o *nodeOptions) clusterDNS(serviceCIDR string) ([]netip.Addr, error) {
	if len(o.dns) == 1 && o.dns[0] == noDNS {
		return nil, nil
	}
	var addrs []netip.Addr
	for _, text := range o.dns {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("--cluster-dns %q is no IP address, such as 10.96.0.10, nor %s", text, noDNS)
		}
		addrs = append(addrs, addr)
	}
	if len(addrs) > 0 || serviceCIDR == "" {
		return addrs, nil
	}
	services, err := netip.ParsePrefix(serviceCIDR)
	if err != nil {
		return nil, nil // the API server says what is wrong with it
	}
	addr := services.Masked().Addr()
	for range 10 {
		addr = addr.Next()
	}
	if !services.Contains(addr) {
		return nil, fmt.Errorf("--service-cidr %s has no tenth address for the cluster's DNS: choose a larger network, or --cluster-dns %s", services, noDNS)
	}
	return []netip.Addr{addr}, nil
}

// servers returns the name servers of stub domains.
func (o *dnsOptions) servers() (map[string][]netip.AddrPort, error) {
	stubs := map[string][]netip.AddrPort{}
	for _, text := range o.stubs {
		domain, server, ok := strings.Cut(text, "=")
		at, err := netip.ParseAddrPort(server)
		if err != nil {
			var addr netip.Addr
			addr, err = netip.ParseAddr(server)
			at = netip.AddrPortFrom(addr, 53)
		}
		if name, valid := dns.Domain(domain); ok && valid && err == nil {
			stubs[name] = append(stubs[name], at)
			continue
		}
		return nil, fmt.Errorf("--dns-stub-domain %q is not DOMAIN=ADDRESS, such as corp.example=10.0.0.53", text)
	}
	return stubs, nil
}

// newDNS returns the cluster's DNS, nil for none.
func newDNS(server *apiserver.Server, api apiOptions, n nodeOptions, o dnsOptions) (*dns.Server, error) {
	addrs, err := n.clusterDNS(api.serviceCIDR)
	stubs, e := o.servers()
	if err = errors.Join(err, e); err != nil || len(addrs) == 0 {
		return nil, err
	}
	set, err := in(server, "system:coracle-dns", user.SystemPrivilegedGroup) // it makes a Service in kube-system, as an administrator would
	if err != nil {
		return nil, err
	}
	settings := dns.Options{Addresses: addrs, ResolvConf: n.resolvConf, Stubs: stubs}
	if services, err := netip.ParsePrefix(api.serviceCIDR); err == nil {
		settings.ServiceNets = []netip.Prefix{services}
	}
	return dns.New(set, settings)
}
