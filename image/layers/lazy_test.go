package layers

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/registry"
)

// A coracle-lazy that takes the request and never answers does not hold up the pull.
func TestShowByOneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, hangs := net.Pipe()
		defer hangs.Close()
		go func() { // the request arrives
			for buf := make([]byte, 512); ; {
				if _, err := hangs.Read(buf); err != nil {
					return
				}
			}
		}()
		l := &Lazy{
			Client: lazy.NewClient(func(context.Context) (net.Conn, error) { return asked, nil },
				func(context.Context) error { return nil }),
			Timeout: func() time.Duration { return time.Hour },
		}
		began := time.Now()
		err := l.show(t.Context(), "/dir", image.LazyLayer{Hosts: registry.Config{ProgressTimeout: time.Minute}})
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 2*time.Minute+answerTime {
			t.Errorf("after %s: %v", took, err)
		}
	})
}

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
