package procsys

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
)

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

const forward = "net/ipv4/ip_forward"

// A setting is that of the thread's namespace, whoever has used the same instance before.
func TestUseIsOfTheThreadsNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	was, err := os.ReadFile("/proc/sys/" + forward)
	if err != nil {
		t.Fatal(err)
	}
	want := "1"
	if strings.TrimSpace(string(was)) == want {
		want = "0"
	}
	before := descriptors(t)
	var wg sync.WaitGroup
	for range 2*uses + 3 {
		wg.Go(func() {
			err := ownthread.Run(func() error {
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					return err
				}
				return Use(func(dir string) error {
					if err := os.WriteFile(filepath.Join(dir, forward), []byte(want), 0); err != nil {
						return err
					}
					b, err := os.ReadFile("/proc/sys/" + forward)
					if got := strings.TrimSpace(string(b)); err == nil && got != want {
						err = fmt.Errorf("it is %q after %q was written", got, want)
					}
					return err
				})
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if is, err := os.ReadFile("/proc/sys/" + forward); err != nil || string(is) != string(was) {
		t.Errorf("the host's is %q, %v, was %q", is, err, was)
	}
	if after := descriptors(t); after > before+1 { // the latest instance
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func TestUseReturnsTheError(t *testing.T) {
	failed := errors.New("failed")
	if err := Use(func(string) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
}
