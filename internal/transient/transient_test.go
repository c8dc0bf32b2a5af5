package transient

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestTry(t *testing.T) {
	for name, c := range map[string]struct {
		err      error
		failures int
		calls    int
	}{
		"at once":         {nil, 0, 1},
		"after a moment":  {unix.EMFILE, 3, 4},
		"wrapped":         {fmt.Errorf("read: %w", &os.PathError{Op: "open", Err: unix.EIO}), 2, 3},
		"never":           {unix.ENOMEM, 1000, mostWaits + 1},
		"damaged for all": {errors.New("malformed"), 1000, 1},
		"missing":         {unix.ENOENT, 1000, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				f := func() (int, error) {
					if calls++; calls <= c.failures {
						return 0, c.err
					}
					return calls, nil
				}
				var w Waits
				begin := time.Now()
				v, err := Try(&w, f)
				if ok := c.failures < c.calls; ok != (err == nil) || ok && v != c.calls || calls != c.calls {
					t.Errorf("%d, %v after %d calls", v, err, calls)
				}
				if took, want := time.Since(begin), time.Duration(c.calls-1)*oneWait; took != want {
					t.Errorf("took %v, want %v", took, want)
				}
				if !errors.Is(err, c.err) && err != nil {
					t.Errorf("error %v", err)
				}
			})
		})
	}
}

// All reads of one pass together wait for half a second.
func TestWaitsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		begin := time.Now()
		for range 1000 {
			if _, err := Try(&w, func() (int, error) { return 0, unix.EIO }); !errors.Is(err, unix.EIO) {
				t.Fatal(err)
			}
		}
		if took := time.Since(begin); took != mostWaits*oneWait {
			t.Errorf("took %v", took)
		}
	})
}
