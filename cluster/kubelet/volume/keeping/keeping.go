// Package keeping has volumes looked after while pods have them, each by the Keeper that
// mounted it.
package keeping

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// keepTimeout bounds one call of a Keeper. It may ask a driver several times, each with its own
// deadline.
const keepTimeout = 10 * time.Minute

// Volume is one that a Keeper looks after, from before it is mounted until it is unmounted. Each
// has its own timer: one that takes long holds up neither its pod nor the pod's other volumes.
type Volume struct {
	log    *slog.Logger
	keeper source.Keeper
	// turn holds one token: its owner mounts or keeps the volume.
	turn chan struct{}
	life context.Context
	end  context.CancelFunc

	mu sync.Mutex
	// spec is nil until the volume is mounted.
	spec    *source.Spec
	timer   *time.Timer
	running bool
	// changed is that the claim has changed while the volume was being mounted or kept.
	changed  bool
	failures int
}

// Set has the volumes of one pod that are looked after, by their State. It is safe for
// concurrent use.
type Set struct {
	log *slog.Logger

	mu      sync.Mutex
	volumes map[string]*Volume
}

// NewSet returns an empty set.
func NewSet(log *slog.Logger) *Set { return &Set{log: log, volumes: map[string]*Volume{}} }

// Of returns the entry of a volume, made if there is none; nil if its source keeps no volumes.
func (x *Set) Of(src source.Source, s *source.Spec) *Volume {
	keeper, keeps := src.(source.Keeper)
	if !keeps {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	k := x.volumes[s.State]
	if k == nil {
		k = &Volume{log: x.log, keeper: keeper, turn: make(chan struct{}, 1)}
		k.life, k.end = context.WithCancel(context.Background())
		x.volumes[s.State] = k
	}
	return k
}

// Soon has all volumes kept as soon as possible.
func (x *Set) Soon() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, k := range x.volumes {
		k.soon()
	}
}

func (k *Volume) enter(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *Volume) leave() { <-k.turn }

// Mount mounts the volume, and looks after it from then on.
func (k *Volume) Mount(ctx context.Context, src source.Source, s *source.Spec) (string, error) {
	if err := k.enter(ctx); err != nil {
		return "", err
	}
	defer k.leave()
	path, err := src.Mount(ctx, s)
	if err != nil {
		return "", err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spec = s
	if !k.running { // else the next time is chosen at its end
		k.sleepLocked()
	}
	return path, nil
}

// soon has the volume kept as soon as possible.
func (k *Volume) soon() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changed = true
	if k.spec != nil && !k.running {
		k.sleepLocked()
	}
}

// sleepLocked sets the timer for the next call of the Keeper.
func (k *Volume) sleepLocked() {
	next := k.keeper.KeepEvery(k.spec)
	if k.failures > 0 {
		if pause := Backoff(k.failures); next == 0 || pause < next {
			next = pause
		}
	}
	if k.changed {
		next = 0
	}
	switch {
	case k.life.Err() != nil || next == 0 && !k.changed:
	case k.timer == nil:
		k.timer = time.AfterFunc(next, k.keep)
	default:
		k.timer.Reset(next)
	}
}

// keep calls the Keeper once.
func (k *Volume) keep() {
	k.mu.Lock()
	if k.running || k.life.Err() != nil {
		k.mu.Unlock()
		return
	}
	k.running, k.changed = true, false
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(k.life, keepTimeout)
	defer cancel()
	err := k.once(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running = false
	if k.life.Err() != nil {
		return
	}
	if err == nil {
		k.failures = 0
	} else {
		k.failures++
		k.log.Warn("volume not looked after", "pod", layout.FullName(k.spec.Pod), "volume", k.spec.Name, "err", err, "tries", k.failures)
	}
	k.sleepLocked()
}

func (k *Volume) once(ctx context.Context) error {
	if err := k.enter(ctx); err != nil {
		return err
	}
	defer k.leave()
	k.mu.Lock()
	s := k.spec
	k.mu.Unlock()
	return k.keeper.Keep(ctx, s)
}

// stop ends the looking after. When it returns, no call is under way, unless ctx has ended.
func (k *Volume) stop(ctx context.Context) error {
	k.end()
	k.mu.Lock()
	if k.timer != nil {
		k.timer.Stop()
	}
	k.mu.Unlock()
	if err := k.enter(ctx); err != nil {
		return err
	}
	k.leave()
	return nil
}

// Stop ends the looking after of all volumes, and forgets them. When it returns, no call is under
// way, unless ctx has ended.
func (x *Set) Stop(ctx context.Context) error {
	x.mu.Lock()
	all := x.volumes
	x.volumes = map[string]*Volume{}
	x.mu.Unlock()
	for _, k := range all {
		k.end()
	}
	for _, k := range all {
		if err := k.stop(ctx); err != nil {
			return err
		}
	}
	return nil
}

// longestBackoff bounds the pause after failures, without the random part.
const longestBackoff = 2 * time.Minute

// Backoff is the pause after so many failures in a row: a second, then twice as long each time, up
// to longestBackoff, and up to a quarter more at random.
func Backoff(failures int) time.Duration {
	pause := min(time.Second<<min(failures-1, 10), longestBackoff)
	return pause + time.Duration(rand.Int64N(int64(pause)/4+1))
}
