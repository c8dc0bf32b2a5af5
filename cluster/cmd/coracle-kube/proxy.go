package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/kubelet/node"
	"github.com/coracle-project/coracle/cluster/proxy"
)

// serviceTable is the nftables table of a cluster, of which a machine may have several. "coracle
// down" removes it by this name.
func serviceTable(port int) string { return "coracle-services-" + strconv.Itoa(port) }

// newProxy makes the proxy of a node, and what runs it.
func newProxy(n *nodeProcess, part *health.Part) (*proxy.Proxy, func(context.Context) error, error) {
	set, err := n.as(user.KubeProxy)
	if err != nil {
		return nil, nil, err
	}
	o := proxy.Options{
		Table: serviceTable(n.port), NodeName: n.name, ServiceRanges: n.services,
		WatchPods: true, ExternalIPs: n.externalIPs, Health: part,
	}
	if o.NodeIPs, err = addresses(n.ips); err != nil {
		return nil, nil, err
	}
	p, err := proxy.New(set, o)
	if err != nil {
		return nil, nil, err
	}
	return p, func(ctx context.Context) error {
		const pause = 30 * time.Second
		for { // without nftables in the kernel, the node still runs pods
			err := p.Run(ctx)
			if ctx.Err() != nil {
				return nil
			}
			n.log.Error("connections to Services are not routed", "err", err, "again", pause)
			part.Fails(err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(pause):
			}
		}
	}, nil
}

func addresses(texts []string) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%q is no IP address, such as 10.0.0.1", text)
		}
		all = append(all, a)
	}
	return all, nil
}

// proxyOptions are the flags of the proxy alone.
type proxyOptions struct {
	name, table    string
	ips            []string
	services, pods []string
	externalIPs    bool
}

// options translates; of a name without addresses, it takes the node's.
func (o *proxyOptions) options() (proxy.Options, error) {
	ips := o.ips
	if len(ips) == 0 {
		ip, err := node.Address(o.name)
		if err != nil {
			return proxy.Options{}, fmt.Errorf("%w; name one with --node-ip", err)
		}
		ips = []string{ip}
	}
	out := proxy.Options{Table: o.table, NodeName: o.name, ExternalIPs: o.externalIPs}
	var errs [3]error
	out.NodeIPs, errs[0] = addresses(ips)
	out.ServiceRanges, errs[1] = networks("--service-cidr", o.services)
	out.PodRanges, errs[2] = networks("--pod-cidr", o.pods)
	return out, errors.Join(errs[:]...)
}

func networks(flag string, texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%s %q is no network, such as 10.96.0.0/16", flag, text)
		}
		all = append(all, p)
	}
	return all, nil
}

func proxyCommand(log *slog.Logger) *cobra.Command {
	var o proxyOptions
	cmd := alone(log, "proxy", "route connections to Services on this node, alone",
		func(ctx context.Context, set *client.Set) (func() error, error) {
			options, err := o.options()
			if err != nil {
				return nil, err
			}
			p, err := proxy.New(set, options)
			return func() error { return p.Run(ctx) }, err
		})
	cmd.Long = `proxy routes connections to Services by nftables, with any CNI plugins and any kubelet. It needs the
rights of the user system:kube-proxy. Its rules stay when it ends, so that a restart interrupts nothing;
"coracle-kube proxy remove" removes them.`
	cmd.Example = `  coracle-kube proxy --kubeconfig proxy.kubeconfig --node-name worker-1 --service-cidr 10.96.0.0/16
  coracle-kube proxy remove`
	f := cmd.Flags()
	f.StringVar(&o.name, "node-name", hostname(), "name of this node")
	f.StringSliceVar(&o.ips, "node-ip", nil, "addresses of this node (default: that of its name or of the default route)")
	f.StringSliceVar(&o.services, "service-cidr", nil,
		"networks of Services' addresses; connections to an address that no Service has are refused")
	f.StringSliceVar(&o.pods, "pod-cidr", nil, "networks of this node's pods (default: only pods that are endpoints are known)")
	f.BoolVar(&o.externalIPs, "allow-external-ips", false, "route the externalIPs of Services, which can take over any address")
	cmd.PersistentFlags().StringVar(&o.table, "table", "coracle-services", "name of the nftables table")
	cmd.AddCommand(&cobra.Command{
		Use:     "remove",
		Short:   "remove the rules that a proxy left",
		Example: "  coracle-kube proxy remove\n  coracle-kube proxy remove --table coracle-services-6443",
		Args:    noArguments,
		RunE:    func(*cobra.Command, []string) error { return proxy.Cleanup(o.table) },
	})
	return cmd
}
