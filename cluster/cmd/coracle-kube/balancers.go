package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	control "github.com/coracle-project/coracle/cluster/controllers/loadbalancer"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/loadbalancer"
	"github.com/coracle-project/coracle/cluster/loadbalancer/announce"
	"github.com/coracle-project/coracle/cluster/loadbalancer/freeports"
)

// balancerOptions are the flags for addresses of Services of type LoadBalancer.
type balancerOptions struct {
	ranges []string
	link   string
}

func (o *balancerOptions) define(f *pflag.FlagSet) {
	f.StringSliceVar(&o.ranges, "load-balancer-cidr", nil,
		"addresses for Services of type LoadBalancer, which this node answers for by ARP and ND: `RANGES` such as 192.168.1.240/28 or "+
			"192.168.1.240-192.168.1.250 (default: the node's own addresses, which Services share by their ports); none leaves such Services to "+
			"others")
	f.StringVar(&o.link, "load-balancer-interface", "", "`INTERFACE` to answer on (default: the one whose network has the address)")
}

// noBalancers as the only range leaves Services of type LoadBalancer to another controller.
const noBalancers = "none"

func (o *balancerOptions) off() bool { return slices.Equal(o.ranges, []string{noBalancers}) }

// pool returns the addresses; none means those of the nodes.
func (o *balancerOptions) pool() (loadbalancer.Pool, error) {
	if o.off() {
		return loadbalancer.Pool{}, nil
	}
	p, err := loadbalancer.ParsePool(o.ranges)
	if err != nil {
		return p, fmt.Errorf("--load-balancer-cidr: %w", err)
	}
	return p, nil
}

// check says what is wrong with the flags, if anything.
func (o *balancerOptions) check(services, pods []netip.Prefix) error {
	p, err := o.pool()
	if err != nil {
		return err
	}
	for _, network := range services {
		if p.Overlaps(network) {
			return fmt.Errorf("--load-balancer-cidr %s overlaps --service-cidr %s: choose addresses of the node's network that nothing else has",
				p, network)
		}
	}
	for _, network := range pods {
		if p.Overlaps(network) {
			return fmt.Errorf("--load-balancer-cidr %s overlaps --pod-cidr %s: choose addresses of the node's network that nothing else has", p,
				network)
		}
	}
	if o.link != "" && p.Empty() {
		return fmt.Errorf("--load-balancer-interface %s is for addresses of --load-balancer-cidr, and there are none", o.link)
	}
	return nil
}

// checkHost says what the addresses would take from this machine, if anything.
func (o *balancerOptions) checkHost(port int) error {
	p, err := o.pool()
	if err != nil {
		return nil // check has said so
	}
	return loadbalancer.CheckHost(p, balancerSink(port))
}

// balancerSink is the device of a cluster's announcements, of which a machine may have several.
// "coracle down" looks for it by this name.
func balancerSink(port int) string { return "coracle-lb" + strconv.Itoa(port) }

// controller returns the options of the controller, nil for none; kubelet is the kubelet's port.
func (o *balancerOptions) controller(port, kubelet int) *control.Options {
	p, err := o.pool()
	if err != nil || o.off() { // check has said what is wrong
		return nil
	}
	return &control.Options{
		Pool: p, Busy: loadbalancer.PortBusy,
		Reserved: map[int32]string{int32(port): "the API server", int32(kubelet): "the kubelet"},
	}
}

// newSpeaker returns what announces the pool's addresses, or what removes announcements without a
// pool, and for one that takes something from this machine, which it tells a health part that it
// asks for. If that fails, the node still runs pods.
func newSpeaker(n *nodeProcess, part func() *health.Part) (func(context.Context) error, error) {
	p, err := n.balancers.pool()
	if err != nil {
		return nil, err
	}
	clean := cleaning(n.log, "announcements", func() error { return announce.Remove(balancerSink(n.port)) })
	if p.Empty() {
		return clean, nil
	}
	if err := loadbalancer.CheckPods(p); err != nil {
		return nil, err
	}
	if err := loadbalancer.CheckHost(p, balancerSink(n.port)); err != nil {
		n.log.Error("addresses of load balancers are not announced", "err", err)
		part().Fails(err)
		return clean, nil
	}
	set, err := n.as(serviceaccount.MakeUsername(metav1.NamespaceSystem, "service-controller"),
		serviceaccount.MakeGroupNames(metav1.NamespaceSystem)...)
	if err != nil {
		return nil, err
	}
	s := loadbalancer.NewSpeaker(set, loadbalancer.SpeakerOptions{
		Node: n.name, Pool: p, Sink: balancerSink(n.port), Interface: n.balancers.link,
	})
	return func(ctx context.Context) error {
		if err := s.Run(ctx); err != nil { // the node still runs pods
			n.log.Error("addresses of load balancers are not announced", "err", err)
		}
		return nil
	}, nil
}

// newFreePorts returns what tells the controller which of this node's ports are free, nil where
// Services do not share the nodes' addresses.
func newFreePorts(n *nodeProcess) (func(context.Context) error, error) {
	p, err := n.balancers.pool()
	if err != nil || !p.Empty() || n.balancers.off() {
		return nil, err
	}
	set, err := n.as(user.KubeProxy)
	if err != nil {
		return nil, err
	}
	own, err := n.as("system:node:"+n.name, user.NodesGroup)
	if err != nil {
		return nil, err
	}
	c := freeports.New(set, freeports.Options{Node: n.name, Client: own.Kube})
	return func(ctx context.Context) error {
		c.Run(ctx)
		return nil
	}, nil
}

// balancersCommand removes what the speaker leaves in the kernel.
func balancersCommand() *cobra.Command {
	var sink string
	cmd := &cobra.Command{
		Use: "load-balancers", Short: "addresses of Services of type LoadBalancer that this node announces", Args: noArguments,
		Long: `load-balancers is about the addresses of --load-balancer-cidr that the kernel answers for, also while no
cluster process runs. "ip neigh show proxy" lists them.`,
		Example: "  coracle-kube load-balancers remove",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	remove := &cobra.Command{
		Use:     "remove",
		Short:   "end the announcement of all addresses",
		Example: "  coracle-kube load-balancers remove\n  coracle-kube load-balancers remove --sink coracle-lb7443",
		Args:    noArguments,
		RunE:    func(*cobra.Command, []string) error { return announce.Remove(sink) },
	}
	remove.Flags().StringVar(&sink, "sink", balancerSink(6443), "name of the cluster's device for that: coracle-lb and the API server's port")
	cmd.AddCommand(remove)
	return cmd
}
