// Package nftable keeps one nftables table of ours in the kernel as its owner wants it.
//
// The owner says what the table holds (Layout), and collects what changes (Batch). A change is sent
// as one transaction of the elements that differ. The kernel's state is read only at the start and
// when someone else changed the table; otherwise only the kernel's notifications are. The table
// outlives the process, so a restart interrupts nothing; Remove deletes it.
//
// The other files have what tables are built of: expr.go and values.go.
package nftable

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Layout says what a table holds.
type Layout interface {
	// Sets are the maps and sets, always the same, in the order in which a transaction changes
	// them. Their Table and ID are filled in.
	Sets() []*nftables.Set
	// Chains are all chains. They may refer to each other.
	Chains() []Chain
	// Elements are all elements, except those of dynamic sets.
	Elements() iter.Seq[Element]
}

// Adaptable is a Layout that can do without something that a kernel may lack.
type Adaptable interface {
	// Adapt is called when the kernel does not support what the layout says. It reports whether the
	// layout says something else now.
	Adapt() bool
}

// Chain is a chain with its rules. What no rule decides on is accepted.
type Chain struct {
	Name     string
	Hook     *nftables.ChainHook // nil for chains that others jump to
	Kind     nftables.ChainType
	Priority nftables.ChainPriority
	Rules    [][]expr.Any
}

// Element is one of a map or set.
type Element struct {
	Set      int    // index of Layout.Sets
	Key, End string // End is for ranges
	Value    string // of a map; in a map of verdicts the chain to go to
}

// Place is where an element is.
type Place struct {
	Set      int
	Key, End string
}

// Table is a table in the kernel. Its methods are for one goroutine, except Changed.
type Table struct {
	name    string
	layout  Layout
	log     *slog.Logger
	kernel  *kernel
	watch   *watch
	found   *Found // in the kernel, before the first Apply; nil if that has to read it
	wanted  bool   // Apply has been called: the layout has what is wanted
	started bool   // the kernel has been compared with what is wanted
	broken  bool   // the kernel may hold something else than what is wanted
}

// Open reads what the kernel has of the table. The first Apply corrects it. The caller must Close
// the Table.
func Open(name string, layout Layout, log *slog.Logger) (*Table, error) {
	t := &Table{name: name, layout: layout, log: log}
	var err error
	if t.kernel, err = openKernel(name, layout); err != nil {
		return nil, err
	}
	if t.watch, err = newWatch(name, log, t.kernel.portID); err != nil {
		return nil, errors.Join(err, t.kernel.close())
	}
	if t.found, err = t.kernel.list(); err != nil {
		return nil, errors.Join(fmt.Errorf("list nftables table %s: %w", name, err), t.Close())
	}
	return t, nil
}

// Close ends the watch. The table stays in the kernel.
func (t *Table) Close() error { return errors.Join(t.watch.close(), t.kernel.close()) }

// Found is what Open found, or what Replace made since. It is nil after the first Apply, and after
// a change by someone else.
func (t *Table) Found() *Found { return t.found }

// Changed gets a value when someone else changed the table. The caller then calls Repair.
func (t *Table) Changed() <-chan struct{} { return t.watch.changed }

// Exists reports whether the kernel has had the table, since Open, as the layout says.
func (t *Table) Exists() bool { return t.started || t.found != nil && t.found.Layout }

// Replace makes the table from nothing.
func (t *Table) Replace() error {
	t.found = nil
	if err := t.unwatched(t.kernel.replace); err != nil {
		return fmt.Errorf("nftables table %s: %w", t.name, err)
	}
	if t.started {
		return nil
	}
	var err error
	t.found, err = t.kernel.made()
	return err
}

// Batch returns an empty batch for the next Apply.
func (t *Table) Batch() *Batch {
	b := &Batch{}
	if t.started && !t.broken {
		b.changes = map[Place]*difference{}
	}
	return b
}

// Apply puts a batch in force, in one transaction. If that fails, or the kernel's state is not
// known, it compares the whole table with the layout, which must have what the batch has. If that
// fails, too, the next Apply or Repair does it.
func (t *Table) Apply(ctx context.Context, b *Batch) error {
	t.wanted = true
	if !b.Whole() {
		err := t.kernel.apply(b)
		if err == nil {
			return nil
		}
		t.log.Warn("an nftables table is not what it was", "table", t.name, "err", err)
	}
	_, err := t.Repair(ctx)
	return err
}

// Repair compares the kernel's table with what is wanted, and corrects it. It reports whether it
// found a difference, which it does not if it could not read the table. After an error the
// difference may remain. Before the first Apply it leaves all of that to Apply.
func (t *Table) Repair(ctx context.Context) (differed bool, err error) {
	if !t.wanted {
		t.found = nil
		return false, nil
	}
	began := time.Now()
	select {
	case <-t.watch.changed:
		t.found = nil // what was found may not be true any more; what follows sees it
	default:
	}
	if err = t.watch.ignore(t.kernel.portID); err == nil {
		differed, err = t.compare()
	}
	t.found = nil
	if err != nil && ctx.Err() == nil { // for example a chain that is in the way
		t.log.Warn("an nftables table is made from nothing", "table", t.name, "err", err)
		if err = t.watch.ignore(t.kernel.portID); err == nil {
			err = t.unwatched(t.kernel.replace)
		}
	}
	t.broken = err != nil
	if err != nil {
		return differed, fmt.Errorf("nftables table %s: %w", t.name, err)
	}
	t.log.Info("an nftables table is in force", "table", t.name, "after", time.Since(began).Round(time.Millisecond), "repaired", t.started)
	t.started = true
	return differed, nil
}

// compare corrects the table, and reports whether it found a difference, as Repair does.
func (t *Table) compare() (differed bool, err error) {
	if t.found == nil {
		if t.found, err = t.kernel.list(); err != nil {
			return false, err
		}
	}
	if !t.found.Layout {
		return true, t.unwatched(t.kernel.replace)
	}
	messages, err := t.kernel.correction(t.found)
	if err != nil || len(messages) == 0 {
		return err != nil, err // the error is that of a chain
	}
	return true, t.unwatched(func() error { return t.kernel.send(messages) })
}

// unwatched runs one transaction, which changes something, without a listener to notifications: the
// kernel makes one of each element, also of those that a filter then drops. Another transaction
// meanwhile shows in the generation.
func (t *Table) unwatched(transaction func() error) error {
	before, err := t.kernel.generation()
	if err != nil {
		return err
	}
	if err := t.watch.leave(); err != nil {
		return err
	}
	err = transaction()
	if ierr := t.watch.ignore(t.kernel.portID); ierr != nil { // it may have opened its socket again
		return errors.Join(err, ierr, t.watch.join())
	}
	if jerr := t.watch.join(); jerr != nil {
		return errors.Join(err, jerr)
	}
	if err != nil {
		return err
	}
	after, err := t.kernel.generation()
	if err == nil && after != before+1 {
		t.watch.signal()
	}
	return err
}

// Remove deletes the table of that name. It is no error if there is none.
func Remove(name string) error {
	k, err := openKernel(name, nil)
	if err != nil {
		return err
	}
	return errors.Join(k.remove(), k.close())
}
