package policy

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"runtime"
	"slices"
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
	grouped  bool  // table has what links say
	removed  bool  // there is no table of an earlier process
	failed   error // of the last attempt to put a change in force
	cuts     cuts
	// recheck are addresses whose connections may be forbidden by rules that are not in force yet.
	recheck map[netip.Addr]bool
	links   links
	answers <-chan answered // about links
	held    []waiter        // until links are known
}

// close forgets the table, which stays in the kernel. After a failure it is opened again: what the
// kernel has then is compared with all that is wanted.
func (k *keeper) close(why error) {
	k.cuts.stop(why)
	if k.table == nil {
		return
	}
	if err := k.table.Close(); err != nil {
		k.Log.Warn("close the rules of network policies", "table", k.Table, "err", err)
	}
	k.table = nil
}

// run puts changes in force and repairs what others change, until ctx ends.
func (k *keeper) run(ctx context.Context) {
	again := time.NewTimer(0) // the first time at once
	defer again.Stop()
	defer k.cuts.next.Stop()
	pause := firstPause
	var repaired time.Time
	for {
		wake := k.wake
		if k.failed != nil {
			wake = nil // until the pause is over
		}
		var changed <-chan struct{}
		var cut <-chan time.Time
		if k.table != nil {
			changed = k.table.Changed()
			k.cuts.schedule()
			cut = k.cuts.next.C
		}
		tried := true // to put something in force
		var err error
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			err = k.sync(ctx)
		case <-wake:
			runtime.Gosched() // others that are ready to say something share a transaction
			err = k.sync(ctx)
		case a := <-k.answers:
			if tried = k.linked(a); tried {
				err = k.sync(ctx)
			}
		case <-cut:
			tried = false
			k.cuts.start(ctx, k.table)
		case err := <-k.cuts.done:
			tried = false
			k.cuts.finish(err)
		case <-changed:
			// Two programs that correct each other must not take a whole core.
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(repaired.Add(repairPause))):
			}
			var differed bool
			if differed, err = k.table.Repair(ctx); err != nil {
				k.close(err)
			}
			if differed && err == nil {
				k.Log.Warn("another program changed the rules of network policies", "table", k.Table)
				k.Health.Notes("nftables table " + k.Table + " was changed by another program, and was corrected")
			}
			repaired = time.Now()
		}
		if ctx.Err() != nil {
			return
		}
		switch {
		case !tried:
		case err == nil:
			k.failed, pause = nil, firstPause
		default:
			k.Log.Error("network policies are not enforced as they should be", "err", err, "again", pause)
			again.Reset(pause)
			k.failed, pause = err, min(2*pause, longestWait)
		}
		k.tell()
		k.did()
	}
}

// tell says whether policies are in force.
func (k *keeper) tell() {
	switch {
	case k.failed != nil:
		k.Health.Fails(k.failed)
	case k.table != nil && k.cuts.failed != nil:
		k.Health.Fails(k.cuts.failed)
	case k.table != nil && !k.links.known && k.links.err != nil:
		k.Health.Fails(k.links.err)
	default:
		k.tellHealth()
	}
}

// sync puts in force what changed since the last time.
func (k *keeper) sync(ctx context.Context) error {
	k.mu.Lock()
	waiting := slices.Concat(k.held, k.waiting)
	k.held, k.waiting = nil, nil
	if k.state.Policies() == 0 {
		k.state.Take() // no pod is isolated any more
		k.mu.Unlock()
		err := k.end()
		answer(waiting, nil)
		return err
	}
	k.noTable = false
	k.mu.Unlock()
	opened := k.table == nil
	failed := k.openTable()
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
	k.cuts.add(nil, r.Gone)
	err := failed
	if err == nil {
		err = k.apply(ctx, r.Change, waiting)
	}
	if err != nil {
		answer(waiting, err)
		k.close(err)
		return err
	}
	k.inForce()
	k.cuts.add(k.recheck, nil)
	clear(k.recheck)
	k.admit(waiting)
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

// admit answers those whose rules are in force, except those that something else is missing for.
func (k *keeper) admit(waiting []waiter) {
	for _, w := range waiting {
		switch {
		case w.isolated && k.LinkGroup != nil && !k.links.known:
			if k.links.err == nil {
				k.held = append(k.held, w)
			} else {
				w.done <- k.links.err
			}
		case k.cuts.hold(w):
		default:
			w.done <- nil
		}
	}
}

// openTable opens the table if it is not open.
func (k *keeper) openTable() error {
	if k.table != nil {
		return nil
	}
	t, err := k.open(rules.Config{Name: k.Table, PodRanges: k.PodRanges, Log: k.Log})
	if err != nil {
		return err
	}
	k.table, k.removed, k.applied, k.grouped = t, false, false, false
	if group, exists := t.AdoptedLinkGroup(); exists && !k.links.known {
		k.links.known, k.links.group = true, group // until the runtime says something else
	}
	return nil
}

// apply puts a change in force. Connections of pods that are gone end before another pod has their
// address. Pods of which Admit is waiting have not started: Admit waits for that instead.
func (k *keeper) apply(ctx context.Context, change rules.Change, waiting []waiter) error {
	var err error
	for a, p := range change.Pods {
		if p != nil && k.cuts.claims(a) && !slices.ContainsFunc(waiting, func(w waiter) bool { return slices.Contains(w.addresses, a) }) {
			err = k.cutGone(ctx)
			break
		}
	}
	if k.links.known && !k.grouped {
		change.LinkGroup = &k.links.group
	}
	if k.applied && change.LinkGroup == nil &&
		len(change.Idents)+len(change.Pods)+len(change.Classes[rules.Ingress])+len(change.Classes[rules.Egress]) == 0 {
		return err
	}
	k.applied = true
	if failed := k.table.Apply(ctx, change); failed != nil {
		return errors.Join(err, failed)
	}
	k.grouped = k.links.known
	return err
}

// cutGone waits for the end of all connections of pods that are gone.
func (k *keeper) cutGone(ctx context.Context) error {
	if k.cuts.pass != nil {
		k.cuts.finish(<-k.cuts.done)
	}
	forbidden := k.cuts.forbidden // by rules that may not be in force
	k.cuts.forbidden = map[netip.Addr]bool{}
	if k.cuts.start(ctx, k.table); k.cuts.pass != nil {
		k.cuts.finish(<-k.cuts.done)
	}
	k.cuts.add(forbidden, nil)
	return k.cuts.failed
}

// linked takes what the runtime says of pods' links. It returns true if there is something to put
// in force, and nothing failed that is tried again soon anyway.
func (k *keeper) linked(a answered) bool {
	if a.err != nil {
		k.links.err = a.err
		if !k.links.known {
			answer(k.held, a.err)
			k.held = nil
		}
		return false
	}
	changed := !k.links.known || k.links.group != a.group
	k.links = links{known: true, group: a.group}
	k.grouped = k.grouped && !changed
	return changed && k.failed == nil
}

// end removes the table: there are no policies.
func (k *keeper) end() error {
	k.cuts.forget()
	k.close(nil)
	clear(k.recheck)
	if !k.removed {
		if err := k.remove(k.Table); err != nil {
			return err
		}
		k.removed = true
	}
	k.mu.Lock()
	k.noTable = k.state.Policies() == 0 // or one has just come
	k.mu.Unlock()
	return nil
}
