package base

import (
	"os"
	"slices"
	"testing"

	"github.com/opencontainers/cgroups"
)

// A cgroup that the caller is in must be known as such: it is neither frozen nor killed as a whole,
// for the caller would not come out of the one, nor survive the other.
func TestCallerIsNoticed(t *testing.T) {
	path := "/sys/fs/cgroup"
	if !cgroups.IsCgroup2UnifiedMode() {
		var err error
		if path, err = cgroups.GetOwnCgroupPath("devices"); err != nil {
			t.Fatal(err)
		}
	}
	r := &Record{CgroupPaths: map[string]string{"devices": path}}
	pids, me, err := r.pidsAndMe()
	if err != nil {
		t.Fatal(err)
	}
	if !me || slices.Contains(pids, os.Getpid()) {
		t.Errorf("caller %d is in %s: %t, of %d", os.Getpid(), path, me, pids)
	}
}
