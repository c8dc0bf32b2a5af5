package layers

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/lazy"
)

// Regression: who shows lazy layers was not kept alive if it did not answer at the daemon's start.
func TestKeepLazy(t *testing.T) {
	whole, shown := digest.FromString("whole"), digest.FromString("shown")
	for name, c := range map[string]struct {
		status   lazy.Status
		err      error
		kept     bool
		unpacked []digest.Digest
	}{
		"no process":     {err: lazy.ErrGone},
		"no answer":      {err: context.DeadlineExceeded, kept: true},
		"nothing":        {kept: true},
		"several layers": {status: lazy.Status{Layers: []digest.Digest{shown, whole}}, kept: true, unpacked: []digest.Digest{whole}},
	} {
		kept, asked := false, context.Context(nil)
		var unpacked []digest.Digest
		err := keeping{
			ask:   func(ctx context.Context) (lazy.Status, error) { asked = ctx; return c.status, c.err },
			keep:  func(ctx context.Context) error { kept = ctx != asked; return nil }, // that one may have ended
			whole: func(d digest.Digest) bool { return d == whole },
			unpacked: func(_ context.Context, d digest.Digest) error {
				unpacked = append(unpacked, d)
				return nil
			},
		}.run(t.Context())
		if kept != c.kept || !slices.Equal(unpacked, c.unpacked) || errors.Is(c.err, context.DeadlineExceeded) != (err != nil) {
			t.Errorf("%s: kept %t, unpacked %v, %v", name, kept, unpacked, err)
		}
	}
}
