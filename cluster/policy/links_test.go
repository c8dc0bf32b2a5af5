package policy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// slowRuntime answers when the test says so.
type slowRuntime chan answered

func (r slowRuntime) linkGroup(ctx context.Context) (uint32, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		return 0, errors.New("the question has no deadline")
	}
	select {
	case a := <-r:
		return a.group, a.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// A runtime that hangs does not keep policies from being enforced. Until it has said which links
// are pods', pods that a policy is about do not start, and health says why.
func TestRuntimeThatHangs(t *testing.T) {
	t.Parallel()
	n := unstarted(t, pod("a", "10.0.0.1"), denyAll())
	runtime := make(slowRuntime)
	n.linkGroup = runtime.linkGroup
	n.prepare = func(p *Policy) { p.linkPatience = time.Hour } // the test gives the answers
	n.start()
	n.until("the policy is in force", func() bool { return n.table != nil && !n.allowed(tcp("10.0.0.9", "10.0.0.1")) })
	isolated := pod("isolated", "")
	isolated.Labels["pod"] = "a"
	early := n.admit(isolated, "10.0.0.2")
	n.until("its rules are in force", func() bool { return !n.allowed(tcp("10.0.0.9", "10.0.0.2")) })
	n.admitted(n.admit(pod("free", ""), "10.0.0.3"))
	select {
	case err := <-early:
		t.Errorf("an isolated pod does not wait for the runtime: %v", err)
	default:
	}
	hangs := errors.New("the runtime hangs")
	runtime <- answered{err: hangs}
	if err := <-early; !errors.Is(err, errLinksUnknown) || !errors.Is(err, hangs) {
		t.Errorf("an isolated pod starts though the runtime does not answer: %v", err)
	}
	n.until("health tells", func() bool {
		s := n.board.States()[0]
		return !s.Healthy && strings.Contains(s.Message, errLinksUnknown.Error()) && strings.Contains(s.Message, hangs.Error())
	})
	if err := <-n.admit(isolated, "10.0.0.2"); !errors.Is(err, errLinksUnknown) {
		t.Errorf("an isolated pod starts though the runtime has not answered: %v", err)
	}
	runtime <- answered{group: 9}
	n.until("the table has the links", func() bool { return n.table.group == 9 && n.board.States()[0].Healthy })
	n.admitted(n.admit(isolated, "10.0.0.2"))

	// Another runtime. That it does not answer at once changes nothing.
	n.p.RuntimeStarted()
	runtime <- answered{err: hangs}
	n.admitted(n.admit(isolated, "10.0.0.4"))
	runtime <- answered{group: 11}
	n.until("the table has its links", func() bool { return n.table.group == 11 })
}

// A process that starts again while the runtime hangs takes over what its table says of links.
func TestLinksOfAnEarlierProcess(t *testing.T) {
	t.Parallel()
	n := unstarted(t, pod("a", "10.0.0.1"), denyAll())
	runtime := make(slowRuntime)
	n.linkGroup, n.adopted = runtime.linkGroup, 5
	n.prepare = func(p *Policy) { p.linkPatience = time.Hour }
	n.start()
	isolated := pod("isolated", "")
	isolated.Labels["pod"] = "a"
	n.admitted(n.admit(isolated, "10.0.0.2"))
	n.mu.Lock()
	if n.table.group != 5 || n.allowed(tcp("10.0.0.9", "10.0.0.2")) {
		t.Errorf("group %d", n.table.group)
	}
	n.mu.Unlock()
	runtime <- answered{group: 6}
	n.until("the runtime's answer counts", func() bool { return n.table.group == 6 })
}
