package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/dns"
	"github.com/coracle-project/coracle/cluster/dns/resolvconf"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/nodeaddr"
)

// dnsOptions are the flags of the cluster's DNS.
type dnsOptions struct {
	stubs []string
}

func (o *dnsOptions) define(f *pflag.FlagSet) {
	f.StringSliceVar(&o.stubs, "dns-stub-domain", nil,
		"name servers of a domain that the cluster's DNS asks instead of the node's: `DOMAIN=ADDRESS` such as corp.example=10.0.0.53, or with "+
			"a port 10.0.0.53:5353; again for further servers")
}

// defineDNS defines the flags that the kubelet and the DNS share.
func (o *nodeOptions) defineDNS(f *pflag.FlagSet) {
	f.StringSliceVar(&o.dns, "cluster-dns", nil,
		"`ADDRESSES` of the cluster's DNS, or none (default: the tenth address of --service-cidr, if that is given); outside of "+
			"--service-cidr they are of a DNS elsewhere")
	f.StringVar(&o.domain, "cluster-domain", "cluster.local", "domain of Services' names")
	f.StringVar(&o.resolvConf, "resolv-conf", "",
		"`FILE` with the node's name servers (default: /etc/resolv.conf, or that of systemd-resolved where it runs)")
}

// checkDNS says what is wrong with the flags of defineDNS, if anything.
func (o *nodeOptions) checkDNS() error {
	if msgs := validation.IsDNS1123Subdomain(o.domain); len(msgs) > 0 {
		return fmt.Errorf("--cluster-domain %q is no domain, such as cluster.local: %s", o.domain, msgs[0])
	}
	if o.resolvConf != "" {
		if _, err := resolvconf.Servers(o.resolvConf); err != nil {
			return fmt.Errorf("--resolv-conf: %w", err)
		}
	}
	_, err := o.clusterDNS(nil)
	return err
}

// noDNS as the only address leaves a cluster without DNS.
const noDNS = "none"

// clusterDNS returns the addresses where pods find the cluster's DNS: those of --cluster-dns, or
// the tenth of the Services' first network, as is usual. services may be empty.
func (o *nodeOptions) clusterDNS(services []netip.Prefix) ([]netip.Addr, error) {
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
	if len(addrs) > 0 || len(services) == 0 {
		return addrs, nil
	}
	addr := services[0].Masked().Addr()
	for range 10 {
		addr = addr.Next()
	}
	if !services[0].Contains(addr) {
		return nil, fmt.Errorf("--service-cidr %s has no tenth address for the cluster's DNS: choose a larger network, or --cluster-dns %s",
			services[0], noDNS)
	}
	return []netip.Addr{addr}, nil
}

// within reports whether an address is of one of the networks.
func within(networks []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(addr) })
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

// dnsCommand answers on a node whose cluster process is elsewhere.
func dnsCommand(log *slog.Logger) *cobra.Command {
	var n nodeOptions
	var o dnsOptions
	var services, pods []string
	cmd := alone(log, "dns", "run the cluster's DNS of a node alone", func(ctx context.Context, set *client.Set) (func() error, error) {
		ranges, err := networks("--pod-cidr", pods)
		nets, serr := networks("--service-cidr", services)
		if err = errors.Join(err, serr, n.checkDNS()); err != nil {
			return nil, err
		}
		n.pods = nodeaddr.NewPods(log, ranges...)
		s, err := newDNS(set, nets, n, o, func() *health.Part { return nil })
		if err == nil && s == nil {
			err = errors.New("--cluster-dns or --service-cidr must say where to answer")
		}
		return func() error { return s.Run(ctx) }, err
	})
	n.defineDNS(cmd.Flags())
	o.define(cmd.Flags())
	cmd.Flags().StringSliceVar(&services, "service-cidr", nil, "networks of Services' addresses")
	cmd.Flags().StringSliceVar(&pods, "pod-cidr", nil,
		"networks of this node's pods, which get answers (default: only pods on coracled's links do)")
	return cmd
}

// newDNS returns the cluster's DNS, nil for none: an address outside of the Services' networks is
// that of a DNS elsewhere, which only the kubelet needs to know. part is asked for if there is one.
func newDNS(set *client.Set, services []netip.Prefix, n nodeOptions, o dnsOptions, part func() *health.Part) (*dns.Server, error) {
	addrs, err := n.clusterDNS(services)
	stubs, e := o.servers()
	if err = errors.Join(err, e); err != nil || len(addrs) == 0 {
		return nil, err
	}
	settings := dns.Options{Addresses: addrs, Pods: n.pods, Domain: n.domain, ResolvConf: n.resolvConf, Stubs: stubs}
	if len(services) > 0 && !within(services, addrs[0]) {
		return nil, nil
	}
	settings.ServiceNets = services
	settings.Health = part()
	return dns.New(set, settings)
}
