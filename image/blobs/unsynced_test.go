package blobs

import (
	"errors"
	"testing"
)

// What gets its name while a sync runs may not be on the disk when that ends, and is not believed
// to be.
func TestUnsynced(t *testing.T) {
	var u unsynced
	sync := func() error { return nil }
	check := func(when string, want bool) {
		t.Helper()
		if got := u.nothing(); got != want {
			t.Errorf("%s: nothing unsynced: %v", when, got)
		}
	}
	check("new", true)
	done := u.begin()
	check("about to be named", false)
	if err := u.during(sync); err != nil {
		t.Fatal(err)
	}
	check("about to be named when a sync began", false)
	done()
	check("named since the sync", false)
	failed := errors.New("failed")
	if err := u.during(func() error { return failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	check("a failed sync", false)
	if err := u.during(sync); err != nil {
		t.Fatal(err)
	}
	check("synced", true)
	if err := u.during(func() error { u.begin()(); return nil }); err != nil {
		t.Fatal(err)
	}
	check("named during a sync", false)
}
