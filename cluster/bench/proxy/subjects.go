package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/proxy"
)

// world is what both proxies are told.
type world struct {
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice
}

func newWorld(count int) *world {
	w := &world{}
	for i := range count {
		ip := netip.AddrFrom4([4]byte{10, 96 + byte((i+1)>>16), byte((i + 1) >> 8), byte(i + 1)}).String()
		w.services = append(w.services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i), Namespace: "default"},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				SessionAffinity: corev1.ServiceAffinityNone,
				Ports:           []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
			},
		})
		w.slices = append(w.slices, endpoints(i, 0))
	}
	return w
}

// endpoints are ten of a Service, or fewer.
func endpoints(service, without int) *discoveryv1.EndpointSlice {
	name, protocol, port := "http", corev1.ProtocolTCP, int32(8080)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("web-%d-x", service), Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("web-%d", service)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
	}
	for e := without; e < 10; e++ {
		n := service*10 + e
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{11, byte(n >> 16), byte(n >> 8), byte(n)}).String()}})
	}
	return s
}

// changed is the slice of the Service in the middle, as it is to be.
func (w *world) changed(fewer bool) (before, now *discoveryv1.EndpointSlice) {
	i := len(w.services) / 2
	if fewer {
		return endpoints(i, 0), endpoints(i, 1)
	}
	return endpoints(i, 1), endpoints(i, 0)
}

// ours is fed by informers, as in a cluster.
type ours struct {
	*world
	api *fake.Clientset
	set *client.Set
	p   *proxy.Proxy
	// done gets a value when all rules are in force.
	done chan struct{}
}

// inForce is a log that waits for what the proxy says then.
type inForce struct {
	slog.Handler
	done chan struct{}
}

func (*inForce) Enabled(context.Context, slog.Level) bool { return true }

func (h *inForce) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "rules of Services are in force" {
		select {
		case h.done <- struct{}{}:
		default:
		}
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func newOurs(w *world) (*ours, error) {
	o := &ours{world: w, api: fake.NewClientset(), done: make(chan struct{}, 1)}
	for _, s := range w.services {
		if err := o.api.Tracker().Add(s); err != nil {
			return nil, err
		}
	}
	for _, s := range w.slices {
		if err := o.api.Tracker().Add(s); err != nil {
			return nil, err
		}
	}
	slog.SetDefault(slog.New(&inForce{slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}), o.done}))
	o.set = &client.Set{Kube: o.api, Informers: client.NewInformers(o.api)}
	var err error
	o.p, err = proxy.New(o.set, proxy.Options{
		Table: "coracle-services", NodeName: "node", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
	})
	return o, err
}

func (o *ours) sync(ctx context.Context) error {
	failed := make(chan error, 1)
	o.set.Informers.Start(ctx.Done())
	go func() { failed <- o.p.Run(ctx) }()
	select {
	case err := <-failed:
		return errors.Join(errors.New("the proxy ended"), err)
	case <-o.done:
		return nil
	}
}

func (o *ours) change(ctx context.Context, fewer bool) error {
	_, now := o.changed(fewer)
	_, err := o.api.DiscoveryV1().EndpointSlices("default").Update(ctx, now, metav1.UpdateOptions{})
	return err
}

// theirs is fed without informers, which is to its advantage.
type theirs struct {
	*world
	p *nftables.Proxier
}

func newTheirs(ctx context.Context, w *world) (*theirs, error) {
	p, err := nftables.NewProxier(
		ctx, corev1.IPv4Protocol, time.Hour, time.Second, false, 14, proxyutil.NewNoOpLocalDetector(), "node", net.IPv4(192, 0, 2, 1),
		&events.FakeRecorder{}, nil, nil, false,
	)
	if err == nil {
		go p.SyncLoop()
	}
	return &theirs{w, p}, err
}

func (t *theirs) sync(context.Context) error {
	for _, s := range t.services {
		t.p.OnServiceAdd(s)
	}
	for _, s := range t.slices {
		t.p.OnEndpointSliceAdd(s)
	}
	t.p.OnServiceSynced()
	t.p.OnEndpointSlicesSynced() // returns when the rules are in force
	return nil
}

func (t *theirs) change(_ context.Context, fewer bool) error {
	t.p.OnEndpointSliceUpdate(t.changed(fewer))
	return nil
}

// generation asks the kernel for the number of nftables' last transaction.
type generation struct{ conn *netlink.Conn }

func newGeneration() (*generation, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return &generation{conn}, nil
}

func (g *generation) now() (uint32, error) {
	answer, err := g.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, fmt.Errorf("ask for nftables' generation: %w", err)
	}
	for _, m := range answer {
		attributes, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			return 0, err
		}
		attributes.ByteOrder = binary.BigEndian
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_GEN_ID {
				return attributes.Uint32(), nil
			}
		}
	}
	return 0, errors.New("ask for nftables' generation: no answer")
}
