package ownthread

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// What f does to its thread comes upon no other one, nor upon the first, which /proc/self is about.
func TestRun(t *testing.T) {
	const self = "/proc/self/ns/uts"
	was, err := os.Readlink(self)
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	for i := range 200 {
		err := Run(func() error { return errors.Join(failed, unix.Unshare(unix.CLONE_NEWUTS)) })
		if !errors.Is(err, failed) || errors.Is(err, unix.EPERM) {
			t.Fatalf("run: %v", err)
		}
		if is, err := os.Readlink(self); err != nil || is != was {
			t.Fatalf("after %d: the process is in %s, was in %s (%v)", i+1, is, was, err)
		}
		if is, err := os.Readlink("/proc/thread-self/ns/uts"); err != nil || is != was {
			t.Fatalf("after %d: a thread is in %s, was in %s (%v)", i+1, is, was, err)
		}
	}
}
