package csi

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/events"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// republishEvery is how often drivers that want it are asked to publish a volume again.
const republishEvery = time.Minute

// firstKeep is when a volume is kept that an earlier kubelet has published: the driver may have
// been growing it when that kubelet ended, and then nothing changes any more that would tell of it.
const firstKeep = time.Second

// KeepEvery implements source.Keeper.
func (n *Node) KeepEvery(v *source.Spec) time.Duration {
	known := n.index.get(v.State)
	switch {
	case known.found:
		return firstKeep
	case known.republish:
		return republishEvery
	case v.PV != nil:
		return n.opts.LookEvery
	}
	return 0
}

// Keep implements source.Keeper: it grows the volume if the claim waits for that, and has it
// published again if the driver wants that. What the pod sees stays as it is if it fails.
func (n *Node) Keep(ctx context.Context, v *source.Spec) error {
	return n.inTurn(ctx, v.Mounted, func(life context.Context) error { return n.keep(ctx, life, v) })
}

func (n *Node) keep(ctx, life context.Context, v *source.Spec) error {
	republish := false
	n.index.update(v.State, func(p *publication) {
		republish, p.found = p.republish, false // if this fails, it is tried again with growing pauses
	})
	if !republish && !n.growths.mayGrow(ctx, v) {
		return nil
	}
	r, err := n.requests.make(ctx, v)
	if err != nil {
		return err
	}
	d, err := n.registry.Driver(r.driverName)
	if err != nil {
		return err
	}
	session, err := d.Open(ctx)
	if err != nil {
		return err
	}
	defer session.Close()
	session.Outlive(life)
	if republish {
		s, err := n.take(ctx, r)
		if err != nil {
			return err
		}
		target := n.places.target(r.user, v.Mounted, v.Block)
		err = n.publish(ctx, session, s, r, target)
		if err == nil && !v.Block {
			err = n.giveGroup(ctx, session, r, target) // what the driver has made
		}
		if err != nil {
			n.opts.Recorder.Eventf(v.Pod, v1.EventTypeWarning, events.FailedMountVolume, "volume %q could not be published again: %v", v.Name, err)
			return err
		}
	}
	return n.growths.grow(ctx, session, r, later)
}
