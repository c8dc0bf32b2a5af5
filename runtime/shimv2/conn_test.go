package shimv2

import (
	"context"
	"errors"
	"testing"
	"time"
)

// late is a context whose deadline has passed and whose timer has not.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Unix(0, 0), true }

// TestShimSeesTheDeadlineFirst: what a shim says of a call whose deadline it has seen pass is that
// the deadline passed, though ours is about to be seen.
func TestShimSeesTheDeadlineFirst(t *testing.T) {
	killed := errors.New("runc exec: signal: killed")
	if err := callError(late{t.Context()}, killed); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("late: %v", err)
	}
	if err := callError(late{t.Context()}, nil); err != nil {
		t.Errorf("what was done in the last moment: %v", err)
	}
	if err := callError(t.Context(), killed); !errors.Is(err, killed) {
		t.Errorf("no deadline: %v", err)
	}
}
