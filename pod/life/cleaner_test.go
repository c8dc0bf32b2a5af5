package life

import (
	"context"
	"errors"
	"log/slog"
	"testing"
)

// Eight pods whose CNI plugin hung stopped all cleaning.
func TestCleaningThatHangsHoldsUpNoOther(t *testing.T) {
	l := New()
	defer l.End()
	const atATime = 8
	c := NewCleaner(l, atATime, slog.New(slog.DiscardHandler))
	again, goOn := make(chan struct{}), make(chan struct{})
	for range atATime {
		tries := 0
		c.Queue("job that hangs", "id", func(context.Context) error {
			if tries++; tries == 1 {
				return errors.New("killed, for it hung")
			}
			again <- struct{}{}
			<-goOn
			return nil
		})
	}
	for range atATime {
		<-again
	}
	done := make(chan struct{})
	c.Queue("job", "id", func(context.Context) error {
		close(done)
		return nil
	})
	<-done
	close(goOn)
	if err := c.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}
