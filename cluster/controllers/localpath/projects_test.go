package localpath

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

// fakeQuotas are quotas of which each call ends with an error, or all of whose numbers are taken.
type fakeQuotas struct{ asked, made error }

func (f fakeQuotas) enforced(int) (bool, error) { return f.asked == nil, f.asked }

func (f fakeQuotas) makeAs(int, string, uint32, uint64) (bool, error) { return false, f.made }

// with is the provisioner with these quotas and log.
func with(o Options, q quotas, log io.Writer) apitest.Controllers {
	o.NodeName = node
	return apitest.Ours(func(set *client.Set) *frame.Controller {
		set.Log = slog.New(slog.NewTextHandler(log, nil))
		return build(set, o, &projects{log: set.Log, kernel: q})
	}).As("persistent-volume-binder")
}

// What a kernel answers that has no project quotas, or none for this process, makes volumes
// unlimited. Any other error is the claim's.
func TestErrorsOfProjectQuotas(t *testing.T) {
	wrapped := func(err error) error { return fmt.Errorf("quotactl_fd: %w", os.NewSyscallError("x", err)) }
	for _, test := range []struct {
		err          error
		fails, warns bool
	}{
		{err: unix.ENOTTY},
		{err: unix.EOPNOTSUPP},
		{err: unix.ENOSYS},
		{err: unix.ESRCH},
		{err: unix.EPERM, warns: true},
		{err: unix.EINVAL, warns: true},
		{err: unix.EIO, fails: true},
		{err: unix.EACCES, fails: true},
		{err: unix.ENOSPC, fails: true},
	} {
		for at, q := range map[string]fakeQuotas{"asked": {asked: wrapped(test.err)}, "made": {made: wrapped(test.err)}} {
			t.Run(fmt.Sprint(test.err, " when ", at), func(t *testing.T) {
				var log strings.Builder
				d := dirs{root: t.TempDir(), projects: &projects{log: slog.New(slog.NewTextHandler(&log, nil)), kernel: q}}
				for _, name := range []string{"pvc-a", "pvc-b"} {
					unlimited, err := d.make(name, 1<<20)
					if unlimited != nil || errors.Is(err, test.err) != test.fails || (err != nil) != test.fails {
						t.Fatalf("%s: %v, %v", name, unlimited, err)
					}
					if made, err := d.has(name); err != nil || made == test.fails {
						t.Errorf("%s: made %v, %v", name, made, err)
					}
				}
				if n := strings.Count(log.String(), "volumes have no limits"); n != map[bool]int{true: 1}[test.warns] {
					t.Errorf("logged %d times: %s", n, &log)
				}
			})
		}
	}
}

// Owners of volumes can occupy the numbers of projects. Volumes are then made without a limit, and
// an Event says so.
func TestProjectNumbersRunOut(t *testing.T) {
	var log strings.Builder
	root := t.TempDir()
	with(Options{Root: root}, fakeQuotas{}, &log).Run(t, func(t *testing.T, s *apitest.Server) {
		b := prepare(t, s, root)
		claim := b.claim("data", "4Mi", nil)
		s.Settle()
		if b.volume(claim) == nil {
			t.Error("there is no volume")
		}
		if info, err := os.Stat(b.dir(claim)); err != nil || info.Mode().Perm() != 0o777 {
			t.Errorf("the volume: %v, %v", info, err)
		}
		b.wantEvent("data", eventUnlimited, "has no limit: all 65536 project numbers from 202375168 on have files")
		b.wantEvent("data", "ProvisioningSucceeded", "")
	})
	if !strings.Contains(log.String(), "a volume has no limit") {
		t.Errorf("logged %s", &log)
	}
}
