//go:build !faults

package fault

import "context"

// Enabled says whether fault points are live in this build.
const Enabled = false

// New returns the point with a name.
func New(name string) Point { return Point(name) }

// At does nothing in a build without the tag "faults".
func (Point) At(context.Context) error { return nil }

// Main does nothing in a build without the tag "faults".
func Main() {}
