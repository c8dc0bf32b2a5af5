package rules

import (
	"context"
	"errors"
	"net/netip"
)

var errNone = errors.New("network policies are not enforced by this build")

// Table is the table in the kernel.
type Table struct{ State }

// Open reads what the kernel has of the table.
func Open(Config) (*Table, error) { return nil, errNone }

// Apply puts a change in force.
func (t *Table) Apply(context.Context, Change) error { return errNone }

// Repair compares the kernel's table with what is wanted and corrects it.
func (t *Table) Repair(context.Context) error { return errNone }

// Changed gets a value when someone else changed the table.
func (t *Table) Changed() <-chan struct{} { return nil }

// Adopted are the idents and pods that the kernel's table had at Open.
func (t *Table) Adopted() (map[netip.Addr]uint32, map[netip.Addr]Pod) { return nil, nil }

// Cut ends connections that are not allowed.
func (t *Table) Cut(context.Context, map[netip.Addr]bool, func(Connection) bool) (int, error) {
	return 0, errNone
}

// Close ends the watch.
func (t *Table) Close() error { return nil }

// Remove deletes the table of that name.
func Remove(string) error { return nil }
