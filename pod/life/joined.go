package life

import (
	"context"
	"time"

	"github.com/coracle-project/coracle/internal/join"
)

// Joined runs operations in a life. A call with the key of one under way joins it.
type Joined struct {
	life *Life
	ops  join.Group[struct{}]
}

// NewJoined makes Joined without any operation under way.
func NewJoined(l *Life) *Joined { return &Joined{life: l} }

// Do runs work under key, or joins the one under way. The work goes on when ctx ends, for as long
// as limit.
func (j *Joined) Do(ctx context.Context, key string, limit time.Duration, work func(context.Context) error) error {
	_, err := j.ops.Do(ctx, key, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, j.life.Run(ctx, limit, work)
	})
	return err
}
