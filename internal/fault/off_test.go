//go:build !faults

package fault

import "testing"

func TestPointsAreDeadInReleaseBuilds(t *testing.T) {
	t.Setenv("CORACLE_FAULTS", "x=error")
	if err := Point("x").At(t.Context()); err != nil || Enabled {
		t.Fatalf("At returned %v, Enabled %v in a release build", err, Enabled)
	}
}
