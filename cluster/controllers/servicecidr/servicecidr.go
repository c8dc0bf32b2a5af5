// Package servicecidr takes care of ServiceCIDRs, the networks that addresses of Services come
// from: each is Ready as soon as it is there, and one that is deleted stays until no Service's
// address depends on it.
package servicecidr

import (
	"context"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applynetworkingv1 "k8s.io/client-go/applyconfigurations/networking/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	lookup "k8s.io/kubernetes/pkg/api/servicecidr"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

const (
	// finalizer keeps a network that is deleted (upstream's name).
	finalizer = "networking.k8s.io/service-cidr-finalizer"
	// fieldManager owns the condition (upstream's name).
	fieldManager = "service-cidr-controller"
	// allocator is who makes the IPAddresses of Services (upstream's name).
	allocator = "ipallocator.k8s.io"
	// grace is how long allocators may take to notice that a network is being deleted (upstream's
	// value).
	grace = 10 * time.Second
	// inUse is upstream's sentence for a network that cannot go.
	inUse = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
	ready = "Kubernetes Service CIDR is ready"
)

type controller struct {
	set       *client.Set
	networks  networkinglisters.ServiceCIDRLister
	addresses networkinglisters.IPAddressLister
	after     func(key string, d time.Duration)
}

// New returns the controller; its keys are ServiceCIDRs. One that comes or goes can let another go;
// so can an address.
func New(set *client.Set) *frame.Controller {
	networks, addresses := set.Informers.Networking().V1().ServiceCIDRs(), set.Informers.Networking().V1().IPAddresses()
	c := &controller{set: set, networks: networks.Lister(), addresses: addresses.Lister()}
	f := frame.New("service-cidr", 5, set.Logger(), c.sync)
	c.after = f.AddAfter
	f.Watch(networks.Informer(), func(obj any) []string { return append(frame.Self(obj), c.terminating()...) })
	f.Watch(addresses.Informer(), func(any) []string { return c.terminating() })
	return f
}

// terminating returns the networks that wait to go.
func (c *controller) terminating() (keys []string) {
	all, _ := c.networks.List(labels.Everything())
	for _, network := range all {
		if network.DeletionTimestamp != nil {
			keys = append(keys, network.Name)
		}
	}
	return keys
}

func (c *controller) sync(ctx context.Context, name string) error {
	network, err := c.networks.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	network = network.DeepCopy()
	switch {
	case network.DeletionTimestamp == nil:
		if !slices.Contains(network.Finalizers, finalizer) {
			network.Finalizers = append(network.Finalizers, finalizer)
			if network, err = c.update(ctx, network); err != nil || network == nil {
				return err
			}
		}
		return c.report(ctx, network, metav1.Condition{Status: metav1.ConditionTrue, Message: ready})
	case !slices.Contains(network.Finalizers, finalizer):
		return nil
	case c.needed(network):
		return c.report(ctx, network, metav1.Condition{
			Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating, Message: inUse,
		})
	}
	if left := grace - time.Since(network.DeletionTimestamp.Time); left > 0 {
		c.after(name, left)
		return nil
	}
	network.Finalizers = slices.DeleteFunc(network.Finalizers, func(f string) bool { return f == finalizer })
	_, err = c.update(ctx, network)
	return err
}

// update writes a network's finalizers. It returns nil if the network has gone.
func (c *controller) update(ctx context.Context, network *networkingv1.ServiceCIDR) (*networkingv1.ServiceCIDR, error) {
	network, err := c.set.Kube.NetworkingV1().ServiceCIDRs().Update(ctx, network, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return network, err
}

// report writes whether a network can be used, unless it says so already. It applies its condition,
// so that those of others stay.
func (c *controller) report(ctx context.Context, network *networkingv1.ServiceCIDR, condition metav1.Condition) error {
	condition.Type = networkingv1.ServiceCIDRConditionReady
	if !meta.SetStatusCondition(&network.Status.Conditions, condition) {
		return nil
	}
	said := meta.FindStatusCondition(network.Status.Conditions, condition.Type)
	status := applynetworkingv1.ServiceCIDRStatus().WithConditions(applymetav1.Condition().WithType(said.Type).WithStatus(said.Status).
		WithReason(said.Reason).WithMessage(said.Message).WithLastTransitionTime(said.LastTransitionTime))
	_, err := c.set.Kube.NetworkingV1().ServiceCIDRs().ApplyStatus(ctx, applynetworkingv1.ServiceCIDR(network.Name).WithStatus(status),
		metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// needed says whether a Service has an address that no other network has.
func (c *controller) needed(network *networkingv1.ServiceCIDR) bool {
	others := func(all []*networkingv1.ServiceCIDR) bool {
		return slices.ContainsFunc(all, func(o *networkingv1.ServiceCIDR) bool { return o.Name != network.Name })
	}
	if !slices.ContainsFunc(network.Spec.CIDRs, func(cidr string) bool {
		prefix, err := netip.ParsePrefix(cidr)
		return err == nil && !others(lookup.ContainsPrefix(c.networks, prefix))
	}) {
		return false // each part of it is in another
	}
	given, _ := c.addresses.List(labels.SelectorFromSet(labels.Set{networkingv1.LabelManagedBy: allocator}))
	return slices.ContainsFunc(given, func(ip *networkingv1.IPAddress) bool {
		address, err := netip.ParseAddr(ip.Name)
		if err != nil {
			return false
		}
		in := lookup.ContainsAddress(c.networks, address)
		return len(in) > 0 && !others(in)
	})
}
