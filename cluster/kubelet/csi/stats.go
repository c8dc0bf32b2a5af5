package csi

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	recording "k8s.io/client-go/tools/record"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/background"
	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
	"github.com/coracle-project/coracle/cluster/kubelet/csi/registration"
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
	log      *slog.Logger
	recorder recording.EventRecorder
	places   places
	work     *background.Group
	registry *registration.Registry
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

func (x *usages) forget(state string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.known, state)
}

// of returns what is known, and has the driver asked if that is old. Only the first caller waits,
// and not for long.
func (x *usages) of(ctx context.Context, v *source.Spec) (statsapi.VolumeStats, bool) {
	x.mu.Lock()
	u := x.known[v.State]
	if u == nil {
		u = &usage{}
		x.known[v.State] = u
	}
	var done chan struct{}
	if u.done == nil && time.Since(u.asked) >= usageAge {
		u.asked, u.done = time.Now(), make(chan struct{})
		if !x.work.Start(func(ctx context.Context) { x.measure(ctx, v, u) }) {
			close(u.done)
			u.done = nil
		}
		if !u.ok && x.late[driverOf(v)] == 0 { // else there are older figures, or there will be none soon
			done = u.done
		}
	}
	x.mu.Unlock()
	if done != nil {
		patience := time.NewTimer(x.patience)
		defer patience.Stop()
		select {
		case <-done:
		case <-patience.C:
		case <-ctx.Done():
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if done != nil && u.done == done && !u.late {
		u.late = true
		x.late[driverOf(v)]++
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
func (x *usages) measure(ctx context.Context, v *source.Spec, u *usage) {
	figure, condition, err := x.askUsage(ctx, v)
	if err != nil {
		x.log.Debug("csi: usage of a volume is not known", "volume", v.Name, "err", err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if condition != u.condition && condition != "" {
		x.recorder.Eventf(v.Pod, v1.EventTypeWarning, "VolumeConditionAbnormal", "Volume %s: %s", v.Name, condition)
	}
	if err == nil {
		u.condition = condition
	}
	if u.late {
		u.late = false
		if x.late[driverOf(v)]--; x.late[driverOf(v)] == 0 {
			delete(x.late, driverOf(v))
		}
	}
	close(u.done)
	u.done = nil
	if u.ok = err == nil; u.ok {
		u.figure = figure
	}
}

var errNoUsage = errors.New("the driver does not say what volumes take")

func (x *usages) askUsage(ctx context.Context, v *source.Spec) (figure statsapi.VolumeStats, condition string, err error) {
	u := user{pod: v.Pod.UID, volume: v.Name}
	target := x.places.target(u, v.Mounted, v.Block)
	r, err := readRecord(recordDir(v.Mounted, v.Block))
	if err != nil {
		return figure, condition, err
	}
	d, err := x.registry.Driver(r.Driver)
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
			x.log.Warn("csi: the driver says that a volume is not well", "driver", r.Driver, "volume", v.Name, "message", condition)
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
