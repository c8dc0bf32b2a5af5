package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// kept are the pod's mounted volumes that a Keeper looks after.
func (p *podVolumes) kept(each func(name string, k Keeper, v *Spec)) {
	p.mu.Lock()
	all := maps.Clone(p.placed)
	p.mu.Unlock()
	for name, at := range all {
		if k, ok := at.source.(Keeper); ok {
			each(name, k, at.spec)
		}
	}
}

// keepAll looks after the pod's volumes.
func (m *Manager) keepAll(ctx context.Context, p *podVolumes) error {
	var errs []error
	p.kept(func(name string, k Keeper, v *Spec) {
		if err := k.Keep(ctx, v); err != nil {
			errs = append(errs, fmt.Errorf("volume %q: %w", name, err))
		}
	})
	return errors.Join(errs...)
}

// keepNext is when keepAll is to be called next, 0 for never.
func (m *Manager) keepNext(p *podVolumes) (next time.Duration) {
	p.kept(func(_ string, k Keeper, v *Spec) {
		if d := k.KeepEvery(v); d > 0 && (next == 0 || d < next) {
			next = d
		}
	})
	return next
}

// lookAt has a pod's volumes looked at soon.
func (m *Manager) lookAt(uid types.UID) {
	if p := m.of(uid, false); p != nil && p.standing.Load() {
		m.lookAfter(p, 0)
	}
}
