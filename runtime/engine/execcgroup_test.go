package engine

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A cgroup that takes no process is left for init's, once.
func TestExecGoesWhereInitIs(t *testing.T) {
	clone3 := func(errno unix.Errno) error { return fmt.Errorf("clone3: %w", errno) }
	for name, c := range map[string]struct {
		own   error // what cloning into the container's cgroup says
		init  string
		tried []string
		want  error
	}{
		"into the container's": {tried: []string{"/c"}},
		"divided":              {own: clone3(unix.EBUSY), init: "/c/init", tried: []string{"/c", "/c/init"}},
		"gone":                 {own: fmt.Errorf("open cgroup /c: %w", unix.ENOENT), init: "/d", tried: []string{"/c", "/d"}},
		"gone meanwhile":       {own: clone3(unix.ENODEV), init: "/d", tried: []string{"/c", "/d"}},
		"init is there, too":   {own: clone3(unix.EBUSY), init: "/c", tried: []string{"/c"}, want: unix.EBUSY},
		"init is gone":         {own: clone3(unix.EBUSY), tried: []string{"/c"}, want: unix.EBUSY},
		"too many processes":   {own: clone3(unix.EAGAIN), init: "/c/init", tried: []string{"/c"}, want: unix.EAGAIN},
	} {
		var tried []string
		pid, err := intoOrWithInit("/c", func() (string, error) {
			if c.init == "" {
				return "", unix.ESRCH
			}
			return c.init, nil
		}, func(cgroup string) (int, error) {
			tried = append(tried, cgroup)
			if cgroup == "/c" && c.own != nil {
				return 0, c.own
			}
			return 7, nil
		})
		if !errors.Is(err, c.want) || (pid == 7) != (c.want == nil) || !slices.Equal(tried, c.tried) {
			t.Errorf("%s: process %d, %v, after trying %q", name, pid, err, tried)
		}
	}
}
