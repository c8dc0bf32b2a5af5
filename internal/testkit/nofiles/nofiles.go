// Package nofiles runs parts of tests without free descriptors. It is a leaf, so that any test can
// use it.
package nofiles

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Run runs f while this process can open nothing. The limit holds for all its goroutines.
func Run(t testing.TB, f func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	f()
}
