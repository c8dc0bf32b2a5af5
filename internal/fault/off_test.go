//go:build !faults

package fault

import "testing"

func TestPointsAreDeadInReleaseBuilds(t *testing.T) {
	t.Setenv("CORACLE_FAULTS", "x=error")
	if err := At(t.Context(), "x"); err != nil || Enabled {
		t.Fatalf("At returned %v, Enabled %v in a release build", err, Enabled)
	}
}
