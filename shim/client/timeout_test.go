package client_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/coracle-project/coracle/shim/client"
)

// The shim learns a call's deadline and may see it pass before the client does. An
// exec that then looked like any failed one was not killed, in about one of ten
// timeouts.
func TestEveryTimedOutExecIsKilled(t *testing.T) {
	const execs = 80
	r := newRig(t)
	req := r.request("sleep 100")
	r.run(req)
	var all sync.WaitGroup
	for range execs {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(r.ctx(), time.Second)
			defer cancel()
			_, err := r.c.Exec(ctx, client.ExecRequest{PodID: pod, ID: req.ID, Process: process("/bin/sleep", "1000")})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("exec: %v", err)
			}
		})
	}
	all.Wait()
	r.waitFor("end of all execs", func() bool {
		left, err := filepath.Glob(filepath.Join(r.dir, "node", "c", "*", "exec-*"))
		return err == nil && len(left) == 0
	})
}
