package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
)

// While a purge deletes the images it owns both directories: a daemon that starts then, as systemd
// starts one that was ended, finds them in use.
func TestPurgeOwnsWhatItDeletes(t *testing.T) {
	n := newNode(t, testkit.Options{})
	many := filepath.Join(n.Root, "build", "many")
	if err := os.MkdirAll(many, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 30_000 { // so that it takes a while
		if err := os.WriteFile(filepath.Join(many, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := os.Open(filepath.Join(n.Root, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	program, done := testkit.Bin(t, "coracled"), make(chan error, 1)
	go func() {
		cmd := exec.CommandContext(t.Context(), program, append([]string{"purge", "--all"}, n.Args()...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("purge: %w\n%s", err, out)
		}
		done <- err
	}()
	tries := 0
	for {
		select {
		case err := <-done:
			if err != nil || tries == 0 {
				t.Errorf("%v, after %d tries to get the lock", err, tries)
			}
			return
		default:
		}
		// Between the end of the daemon and the purge the lock is free for a moment.
		if _, err := os.Stat(filepath.Join(n.State, "pods")); err == nil {
			continue
		}
		tries++
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			continue
		}
		if _, err := os.Stat(many); err == nil {
			t.Error("the root can be locked while it is being deleted")
		}
		_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
	}
}
