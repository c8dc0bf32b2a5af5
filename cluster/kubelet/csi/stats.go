package csi

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

const (
	// usageAge is how old the figures of a volume may be.
	usageAge = time.Minute
	// usagePatience is the patience of those who ask.
	usagePatience = time.Second
)

// usages are the figures of volumes. Each has at most one call under way, however long that takes.
type usages struct {
	// patience is how long one who asks waits for a driver.
	patience time.Duration

	mu    sync.Mutex
	known map[string]*usage // by State
	// late counts by driver the calls under way that someone has waited for in vain. No call waits
	// for such a driver.
	late map[string]int
}

type usage struct {
	asked  time.Time
	done   chan struct{} // closed when the call under way has ended; nil if there is none
	late   bool
	figure statsapi.VolumeStats
	ok     bool
	// condition is what the driver says of a volume that is not well.
	condition string
}

func (u *usages) forget(state string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.known, state)
}

// Usage implements source.Measurer. It returns what is known, and has the driver asked if that is
// old. Only who asks first waits, and not for long.
func (n *Node) Usage(ctx context.Context, v *source.Spec) (statsapi.VolumeStats, bool) {
	n.usages.mu.Lock()
	u := n.usages.known[v.State]
	if u == nil {
		u = &usage{}
		n.usages.known[v.State] = u
	}
	var done chan struct{}
	if u.done == nil && time.Since(u.asked) >= usageAge {
		u.asked, u.done = time.Now(), make(chan struct{})
		if !n.work.Start(func(ctx context.Context) { n.measure(ctx, v, u) }) {
			close(u.done)
			u.done = nil
		}
		if !u.ok && n.usages.late[driverOf(v)] == 0 { // else there are older figures, or there will be none soon
			done = u.done
		}
	}
	n.usages.mu.Unlock()
	if done != nil {
		patience := time.NewTimer(n.usages.patience)
		defer patience.Stop()
		select {
		case <-done:
		case <-patience.C:
		case <-ctx.Done():
		}
	}
	n.usages.mu.Lock()
	defer n.usages.mu.Unlock()
	if done != nil && u.done == done && !u.late {
		u.late = true
		n.usages.late[driverOf(v)]++
	}
	return u.figure, u.ok
}

// driverOf is the name of the volume's driver.
func driverOf(v *source.Spec) string {
	if v.PV != nil {
		return v.PV.Spec.CSI.Driver
	}
	return v.Inline.CSI.Driver
}

// measure asks the driver.
func (n *Node) measure(ctx context.Context, v *source.Spec, u *usage) {
	figure, condition, err := n.askUsage(ctx, v)
	if err != nil {
		n.opts.Log.Debug("csi: usage of a volume is not known", "volume", v.Name, "err", err)
	}
	n.usages.mu.Lock()
	defer n.usages.mu.Unlock()
	if condition != u.condition && condition != "" {
		n.opts.Recorder.Eventf(v.Pod, v1.EventTypeWarning, "VolumeConditionAbnormal", "Volume %s: %s", v.Name, condition)
	}
	if err == nil {
		u.condition = condition
	}
	if u.late {
		u.late = false
		if n.usages.late[driverOf(v)]--; n.usages.late[driverOf(v)] == 0 {
			delete(n.usages.late, driverOf(v))
		}
	}
	close(u.done)
	u.done = nil
	if u.ok = err == nil; u.ok {
		u.figure = figure
	}
}

var errNoUsage = errors.New("the driver does not say what volumes take")

func (n *Node) askUsage(ctx context.Context, v *source.Spec) (figure statsapi.VolumeStats, condition string, err error) {
	u := user{pod: v.Pod.UID, volume: v.Name}
	target := n.target(u, v.Mounted, v.Block)
	r, err := readRecord(recordDir(v.Mounted, v.Block))
	if err != nil {
		return figure, condition, err
	}
	d, err := n.registry.Driver(r.Driver)
	if err != nil {
		return figure, condition, err
	}
	session, err := d.Open(ctx)
	if err != nil {
		return figure, condition, err
	}
	defer session.Close()
	if !session.Can[csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		return figure, condition, errNoUsage
	}
	var answer *csipb.NodeGetVolumeStatsResponse
	err = session.Call(ctx, "NodeGetVolumeStats", func(ctx context.Context) (err error) {
		answer, err = session.Node.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{VolumeId: r.Handle, VolumePath: d.Seen(target)})
		return err
	})
	if err != nil {
		return figure, condition, err
	}
	figure.Time = metav1.Now()
	for _, part := range answer.GetUsage() {
		available, total, used := count(part.GetAvailable()), count(part.GetTotal()), count(part.GetUsed())
		switch part.GetUnit() {
		case csipb.VolumeUsage_BYTES:
			figure.AvailableBytes, figure.CapacityBytes, figure.UsedBytes = available, total, used
		case csipb.VolumeUsage_INODES:
			figure.InodesFree, figure.Inodes, figure.InodesUsed = available, total, used
		}
	}
	if c := answer.GetVolumeCondition(); c != nil && session.Can[csipb.NodeServiceCapability_RPC_VOLUME_CONDITION] {
		figure.VolumeHealthStats = &statsapi.VolumeHealthStats{Abnormal: c.GetAbnormal()}
		if c.GetAbnormal() {
			if condition = client.Shorten(c.GetMessage()); condition == "" {
				condition = "the driver says that the volume is not well"
			}
			n.opts.Log.Warn("csi: the driver says that a volume is not well", "driver", r.Driver, "volume", v.Name, "message", condition)
		}
	} else if len(answer.GetUsage()) == 0 {
		return figure, condition, errNoUsage
	}
	return figure, condition, nil
}

// count is a driver's figure; one below zero is 0.
func count(n int64) *uint64 {
	u := uint64(min(max(n, 0), math.MaxInt64))
	return &u
}
