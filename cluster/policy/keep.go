package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"time"

	"k8s.io/client-go/tools/record"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// keeper is the loop of Run.
type keeper struct {
	*Policy
	recorder record.EventRecorder
	table    table // nil while there is no policy
	applied  bool  // something to table
	removed  bool  // there is no table of an earlier process
	// Addresses whose connections may be forbidden, and those of pods that are gone.
	recheck, gone map[netip.Addr]bool
}

// close forgets the table, which stays in the kernel. After a failure it is opened again: what the
// kernel has then is compared with all that is wanted.
func (k *keeper) close() {
	if k.table == nil {
		return
	}
	if err := k.table.Close(); err != nil {
		slog.Warn("close the rules of network policies", "table", k.Table, "err", err)
	}
	k.table = nil
}

// run puts changes in force and repairs what others change, until ctx ends.
func (k *keeper) run(ctx context.Context) {
	again := time.NewTimer(0) // the first time at once
	defer again.Stop()
	var sweep <-chan time.Time
	pause := firstPause
	var repaired time.Time
	failing := false
	for {
		wake, swept := k.wake, false
		if failing {
			wake = nil // until the pause is over
		}
		var changed <-chan struct{}
		if k.table != nil {
			changed = k.table.Changed()
		}
		var err error
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			err = k.sync(ctx)
		case <-wake:
			err = k.sync(ctx)
		case <-sweep:
			sweep, swept = nil, true
			err = k.cutGone(ctx)
			k.did()
		case <-changed:
			// Two programs that correct each other must not take a whole core.
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(repaired.Add(repairPause))):
			}
			slog.Warn("another program changed the rules of network policies", "table", k.Table)
			k.Health.Notes("nftables table " + k.Table + " was changed by another program, or may have been, and was compared and corrected")
			if err = k.table.Repair(ctx); err != nil {
				k.close()
			}
			repaired = time.Now()
			k.did()
		}
		if len(k.gone) > 0 && sweep == nil && k.table != nil {
			sweep = time.After(gonePause)
		}
		if err == nil {
			if !swept {
				k.tellHealth()
				pause, failing = firstPause, false
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		slog.Error("network policies are not enforced as they should be", "err", err, "again", pause)
		k.Health.Fails(err)
		again.Reset(pause)
		failing = true
		pause = min(2*pause, longestWait)
	}
}

// sync puts in force what changed since the last time.
func (k *keeper) sync(ctx context.Context) error {
	k.mu.Lock()
	waiting := k.waiting
	k.waiting = nil
	if k.state.Policies() == 0 {
		k.state.Take() // nobody is isolated any more
		k.mu.Unlock()
		err := k.end()
		answer(waiting, nil)
		return err
	}
	k.noTable = false
	k.mu.Unlock()
	opened := k.table == nil
	failed := k.openTable(ctx)
	k.mu.Lock()
	if opened {
		k.state.Reset()
		if k.table != nil {
			k.state.Wish(k.table.Adopted())
		}
	}
	r := k.state.Take() // also without a table, to find out which pods are isolated
	for i, w := range waiting {
		waiting[i].isolated = k.state.Isolated(w.id)
	}
	k.mu.Unlock()
	k.report(k.recorder, r)
	maps.Copy(k.recheck, r.Recheck)
	maps.Copy(k.gone, r.Gone)
	err := failed
	if err == nil {
		err = k.apply(ctx, r.Change)
	}
	answer(waiting, err)
	if err != nil {
		k.close()
		return err
	}
	k.inForce()
	if err := k.cut(ctx); err != nil {
		return err
	}
	k.did()
	return nil
}

// answer tells those that wait for a sync of its error. Pods that no policy is about start whatever
// happens.
func answer(all []waiter, err error) {
	for _, w := range all {
		if w.isolated {
			w.done <- err
		} else {
			w.done <- nil
		}
	}
}

// openTable sees to it that there is a table.
func (k *keeper) openTable(ctx context.Context) (err error) {
	if k.table != nil {
		return nil
	}
	config := rules.Config{Name: k.Table, PodRanges: k.PodRanges}
	if k.LinkGroup != nil {
		if config.LinkGroup, err = k.LinkGroup(ctx); err != nil {
			return err
		}
	}
	t, err := k.open(config)
	if err != nil {
		return err
	}
	k.table, k.removed, k.applied = t, false, false
	return nil
}

// apply puts a change in force. Connections of pods that are gone end before another pod has their
// address.
func (k *keeper) apply(ctx context.Context, change rules.Change) error {
	var err error
	for a, p := range change.Pods {
		if p != nil && k.gone[a] {
			err = k.cutGone(ctx)
			break
		}
	}
	if len(change.Idents)+len(change.Pods)+len(change.Classes[rules.Ingress])+len(change.Classes[rules.Egress]) == 0 && k.applied {
		return err
	}
	k.applied = true
	return errors.Join(err, k.table.Apply(ctx, change))
}

// end removes the table: there are no policies.
func (k *keeper) end() error {
	k.close()
	clear(k.recheck)
	clear(k.gone)
	if !k.removed {
		if err := k.remove(k.Table); err != nil {
			return err
		}
		k.removed = true
	}
	k.mu.Lock()
	k.noTable = k.state.Policies() == 0 // or one has just come
	k.mu.Unlock()
	k.did()
	return nil
}

// cut ends the connections that are forbidden now.
func (k *keeper) cut(ctx context.Context) error {
	if len(k.recheck) == 0 {
		return nil
	}
	n, err := k.table.Cut(ctx, k.recheck, k.table.Allowed)
	if err != nil {
		return fmt.Errorf("end connections that policies forbid: %w", err)
	}
	if n > 0 {
		slog.Info("connections were ended, as policies forbid them", "connections", n)
	}
	clear(k.recheck)
	return nil
}

// cutGone ends the connections of pods that are gone: replies to them would pass, also those of
// another pod.
func (k *keeper) cutGone(ctx context.Context) error {
	if len(k.gone) == 0 || k.table == nil {
		return nil
	}
	if _, err := k.table.Cut(ctx, k.gone, func(rules.Connection) bool { return false }); err != nil {
		return fmt.Errorf("end connections of pods that are gone: %w", err)
	}
	clear(k.gone)
	return nil
}
