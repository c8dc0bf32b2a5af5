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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/proxy"
)

// world is what both proxies are told.
type world struct {
	count    int
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice
}

func newWorld(count int) *world {
	w := &world{count: count}
	w.services, w.slices = testkit.Services(count)
	return w
}

// changed is the slice of the Service in the middle, as it is to be.
func (w *world) changed(fewer bool) (before, now *discoveryv1.EndpointSlice) {
	i := w.count / 2
	if fewer {
		return testkit.Endpoints(i, 0), testkit.Endpoints(i, 1)
	}
	return testkit.Endpoints(i, 1), testkit.Endpoints(i, 0)
}

// ours is fed by informers, as in a cluster.
type ours struct {
	*world
	set   *client.Set
	board health.Board
	p     *proxy.Proxy
	// slices has the changes: the fake API server takes milliseconds for an update.
	slices *watch.RaceFreeFakeWatcher
}

func newOurs(w *world) (*ours, error) {
	// Lists are ready: the fake API server copies and sorts all objects for one, which is no work
	// of the proxy's.
	api := fake.NewClientset()
	services, slices := &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}
	for i := range w.services {
		services.Items, slices.Items = append(services.Items, *w.services[i]), append(slices.Items, *w.slices[i])
	}
	w.services, w.slices = nil, nil
	for resource, list := range map[string]runtime.Object{"services": services, "endpointslices": slices} {
		api.PrependReactor("list", resource, func(k8stesting.Action) (bool, runtime.Object, error) { return true, list, nil })
	}
	o := &ours{world: w, slices: watch.NewRaceFreeFake()}
	api.PrependWatchReactor("endpointslices", func(k8stesting.Action) (bool, watch.Interface, error) { return true, o.slices, nil })
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	o.set = &client.Set{Kube: api, Informers: client.NewInformers(api), Log: log}
	var err error
	o.p, err = proxy.New(o.set, proxy.Options{
		Table: "coracle-services", NodeName: "node", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, Health: o.board.Add("service proxy"),
	})
	return o, err
}

func (o *ours) sync(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { cancel(errors.Join(errors.New("the proxy ended"), o.p.Run(ctx))) }()
	o.set.Informers.Start(ctx.Done())
	o.board.Wait(ctx)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if state := o.board.States()[0]; !state.Healthy {
		return errors.New(state.Message)
	}
	return nil
}

func (o *ours) change(_ context.Context, fewer bool) error {
	_, now := o.changed(fewer)
	o.slices.Modify(now)
	return nil
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

// transactions waits for nftables' transactions: the kernel sends a notification of each.
type transactions struct{ notified, asked *netlink.Conn }

func watchTransactions() (*transactions, error) {
	t := &transactions{}
	var err error
	if t.asked, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	if t.notified, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err == nil {
		err = errors.Join(t.notified.SetReadBuffer(64<<20), t.notified.JoinGroup(unix.NFNLGRP_NFTABLES))
	}
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	return t, nil
}

// last is the number of the last transaction.
func (t *transactions) last() (uint32, error) {
	answer, err := t.asked.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, fmt.Errorf("ask for nftables' generation: %w", err)
	}
	return number(answer), nil
}

// after returns when there is a later transaction.
func (t *transactions) after(last uint32) error {
	for {
		messages, err := t.notified.Receive()
		if err != nil {
			return fmt.Errorf("watch nftables: %w", err)
		}
		if number(messages) > last {
			return nil
		}
	}
}

// number is that of the last transaction of which messages tell, or 0.
func number(messages []netlink.Message) (last uint32) {
	for _, m := range messages {
		if m.Header.Type&0xff != unix.NFT_MSG_NEWGEN {
			continue
		}
		attributes, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			continue
		}
		attributes.ByteOrder = binary.BigEndian
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_GEN_ID {
				last = attributes.Uint32()
			}
		}
	}
	return last
}
