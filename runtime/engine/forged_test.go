package engine

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/plan"
)

// TestAttackForgedReports: a process of the container that can trace the child reports steps for
// which the configuration has nothing. The shim dereferenced nil, and ended.
func TestAttackForgedReports(t *testing.T) {
	const says = "reports a step that its plan does not have"
	for _, f := range []struct {
		name      string
		kind, arg uint32
	}{
		{"scheduler", plan.ReportPoint, uint32(plan.PointScheduler)},
		{"mappings", plan.ReportPoint, uint32(plan.PointMappings)},
		{"hooks", plan.ReportPoint, uint32(plan.PointHooks)},
		{"cgroup", plan.ReportPoint, uint32(plan.PointCgroup)},
		{"unknown point", plan.ReportPoint, 1000},
		{"seccomp agent", plan.ReportListener, 0},
		{"tmpcopyup", plan.ReportCopyUp, 0},
	} {
		spec := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
		c := (&Engine{store: &base.Store{}}).container(&base.Record{Own: []byte("{}")})
		t.Run("exec: "+f.name, func(t *testing.T) {
			e := &entry{container: c, process: spec.Process, plan: &plan.Plan{}}
			if _, err := e.follow(forged(t, e.plan, f.kind, f.arg), 0); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("error %v, want one saying %q", err, says)
			}
		})
		t.Run("create: "+f.name, func(t *testing.T) {
			b := &birth{engine: c.engine, spec: spec, plan: &plan.Plan{}, code: &plan.Code{}}
			b.conv = forged(t, b.plan, f.kind, f.arg)
			if err := b.listen(t.Context(), c); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("error %v, want one saying %q", err, says)
			}
		})
	}
}

// TestAttackForgedSchedulerOfTheShim: the report that asks for the scheduler comes before the child
// has said which process it is for. Process 0 is the caller of sched_setattr(2).
func TestAttackForgedSchedulerOfTheShim(t *testing.T) {
	reset := []specs.LinuxSchedulerFlag{specs.SchedFlagResetOnFork}
	e := &entry{
		process: &specs.Process{Scheduler: &specs.Scheduler{Policy: specs.SchedBatch, Flags: reset}},
		plan:    &plan.Plan{Ops: []plan.Op{plan.Wait{For: plan.PointScheduler}}},
	}
	const says = "before it is in the container"
	_, err := e.follow(forged(t, e.plan, plan.ReportPoint, uint32(plan.PointScheduler)), 0)
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("error %v, want one saying %q", err, says)
	}
}

// forged is a conversation in which the child sends one report, struct report of zygote.h, and
// ends.
func forged(t *testing.T, p *plan.Plan, kind, arg uint32) *conversation {
	t.Helper()
	c, err := newConversation(p, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	le := binary.LittleEndian
	report := le.AppendUint32(le.AppendUint32(nil, kind), arg)
	if err := unix.Send(c.childs, slices.Concat(report, make([]byte, reportHead-len(report))), 0); err != nil {
		t.Fatal(err)
	}
	c.closeChildEnd()
	return c
}
