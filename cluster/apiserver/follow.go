package apiserver

import (
	"context"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"
)

// followLimit bounds what a server waits for before it answers clients. Then it says itself what it
// misses.
const followLimit = 2 * time.Second

// follow starts the server's informers, which work until following ends, and returns when they have
// synced and the network of Services exists. Upstream's hooks come after, and find what they wait
// for: they look every 100 ms, one after the other.
func (b *build) follow(ctx, following context.Context) {
	networks := b.informers.Networking().V1().ServiceCIDRs().Informer()
	b.informers.StartWithContext(following)
	b.definitions.StartWithContext(following)
	go b.gate.open(following)
	ctx, cancel := context.WithTimeout(ctx, b.options.followLimit)
	defer cancel()
	b.informers.WaitForCacheSyncWithContext(ctx)
	b.definitions.WaitForCacheSyncWithContext(ctx)
	if !networks.HasSynced() || b.hasServiceNetwork() {
		return
	}
	if err := b.makeServiceNetwork(ctx); err != nil {
		b.options.Log.Debug("the network of Services is not there yet", "err", err)
	}
}

func (b *build) hasServiceNetwork() bool {
	_, err := b.informers.Networking().V1().ServiceCIDRs().Lister().Get(defaultservicecidr.DefaultServiceCIDRName)
	return err == nil
}

// makeServiceNetwork makes what upstream's controller keeps, and returns when the informer has it.
func (b *build) makeServiceNetwork(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(b.loopback)
	if err != nil {
		return err
	}
	cidrs := []string{b.addresses.services.String()}
	if b.addresses.second.IP != nil {
		cidrs = append(cidrs, b.addresses.second.String())
	}
	_, err = client.NetworkingV1().ServiceCIDRs().Create(ctx, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: defaultservicecidr.DefaultServiceCIDRName},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return wait.PollUntilContextCancel(ctx, seenPoll, true, func(context.Context) (bool, error) { return b.hasServiceNetwork(), nil })
}
