package volume

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// keepTimeout bounds one call of a Keeper. It may ask a driver several times, each with its own
// deadline.
const keepTimeout = 10 * time.Minute

// kept is a volume that a Keeper looks after, from before it is mounted until it is unmounted. Each
// has its own timer: one that takes long holds up neither its pod nor the pod's other volumes.
type kept struct {
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

// keptBy returns the entry of a volume of the pod, made if there is none; nil if its source keeps
// no volumes.
func (p *podVolumes) keptBy(log *slog.Logger, src source.Source, s *source.Spec) *kept {
	keeper, keeps := src.(source.Keeper)
	if !keeps {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kept[s.State]
	if k == nil {
		k = &kept{log: log, keeper: keeper, turn: make(chan struct{}, 1)}
		k.life, k.end = context.WithCancel(context.Background())
		if p.kept == nil {
			p.kept = map[string]*kept{}
		}
		p.kept[s.State] = k
	}
	return k
}

func (k *kept) enter(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *kept) leave() { <-k.turn }

// mount mounts the volume, and looks after it from then on.
func (k *kept) mount(ctx context.Context, src source.Source, s *source.Spec) (string, error) {
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
func (k *kept) soon() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changed = true
	if k.spec != nil && !k.running {
		k.sleepLocked()
	}
}

// sleepLocked sets the timer for the next call of the Keeper.
func (k *kept) sleepLocked() {
	next := k.keeper.KeepEvery(k.spec)
	if k.failures > 0 {
		if pause := backoff(k.failures); next == 0 || pause < next {
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
func (k *kept) keep() {
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
		k.log.Warn("volume not looked after", "pod", fullName(k.spec.Pod), "volume", k.spec.Name, "err", err, "tries", k.failures)
	}
	k.sleepLocked()
}

func (k *kept) once(ctx context.Context) error {
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
func (k *kept) stop(ctx context.Context) error {
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

// stopKeeping ends the looking after of all volumes of the pod.
func (p *podVolumes) stopKeeping(ctx context.Context) error {
	p.mu.Lock()
	all := p.kept
	p.kept = nil
	p.mu.Unlock()
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

// lookAt has the volumes of a pod kept soon.
func (m *Manager) lookAt(uid types.UID) {
	p := m.of(uid, false)
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kept {
		k.soon()
	}
}
