package policy

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// linkPatience is that of Policy, outside of tests.
const linkPatience = 10 * time.Second

// errLinksUnknown is why pods do not start.
var errLinksUnknown = errors.New("the runtime has not said which links are pods'")

// links are what the runtime says of the links of this node's pods. They belong to the keeper's
// loop.
type links struct {
	known bool
	group uint32
	err   error // why it is not known
}

// answered is the runtime's answer, or why there is none.
type answered struct {
	group uint32
	err   error
}

// RuntimeStarted tells that the runtime was connected to, again or for the first time: the group of
// its pods' links may be another one.
func (p *Policy) RuntimeStarted() {
	select {
	case p.runtime <- struct{}{}:
	default:
	}
}

// askLinks asks for the group of pods' links until it is known, and again when the runtime was
// started, until ctx ends. It has a goroutine of its own: a runtime that hangs must not keep
// policies from being enforced.
func (p *Policy) askLinks(ctx context.Context, tell chan<- answered) {
	pause := firstPause
	for {
		a := p.askLinksOnce(ctx)
		select {
		case tell <- a:
		case <-ctx.Done():
			return
		}
		var again <-chan time.Time
		if a.err != nil {
			p.Log.Warn("the runtime does not say which links are pods'", "err", a.err, "again", pause)
			again, pause = time.After(pause), min(2*pause, longestWait)
		} else {
			pause = firstPause
		}
		select {
		case <-again:
		case <-p.runtime:
		case <-ctx.Done():
			return
		}
	}
}

func (p *Policy) askLinksOnce(ctx context.Context) answered {
	ctx, cancel := context.WithTimeout(ctx, p.linkPatience)
	defer cancel()
	group, err := p.LinkGroup(ctx)
	if err != nil {
		err = fmt.Errorf("%w: %w", errLinksUnknown, err)
	}
	return answered{group, err}
}
