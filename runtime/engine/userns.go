package engine

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/stuck"
	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/zygote"
)

func (b *birth) raiseLimits(pid int) error {
	z, err := b.engine.zygote()
	if err != nil {
		return err
	}
	for _, l := range plan.EarlyLimits(b.spec.Process, z.NoFile[1]) {
		if err := unix.Prlimit(pid, runtime.Rlimits[l.Type], &unix.Rlimit{Cur: l.Soft, Max: l.Hard}, nil); err != nil {
			return fmt.Errorf("limit %s to %d, %d: %w", l.Type, l.Soft, l.Hard, err)
		}
	}
	return nil
}

func writeOOMScore(pid int, score *int) error {
	if score == nil {
		return nil
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(*score)), 0); err != nil {
		return fmt.Errorf("set oom_score_adj to %d: %w", *score, err)
	}
	return nil
}

// writeTimeOffsets writes time_namespaces(7)'s timens_offsets of a process of ours.
func writeTimeOffsets(pid int, offsets map[string]specs.LinuxTimeOffset) error {
	var b strings.Builder
	for clock, o := range offsets {
		fmt.Fprintf(&b, "%s %d %d\n", clock, o.Secs, o.Nanosecs)
	}
	if b.Len() == 0 {
		return nil
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/timens_offsets", pid), []byte(b.String()), 0); err != nil {
		return fmt.Errorf("set linux.timeOffsets: %w", err)
	}
	return nil
}

// userNamespace makes a user namespace of these mappings and returns its descriptor. A
// process must be in it for it to be made; that one waits, and ends when it is no longer
// needed.
func (e *Engine) userNamespace(m *plan.Mappings) (int, error) {
	p := &plan.Plan{
		Opens: []plan.Open{{Name: plan.FdSync}}, Namespaces: unix.CLONE_NEWUSER,
		Ops: []plan.Op{plan.Wait{For: plan.PointMappings}},
	}
	code, err := p.Encode(e.features)
	if err != nil {
		return -1, err
	}
	conv, err := newConversation(p, e.patience.Idle)
	if err != nil {
		return -1, err
	}
	pid, err := e.clone(code, p.Namespaces, -1, []int{conv.childs})
	if errors.Is(err, zygote.ErrLost) {
		err = errors.Join(err, conv.endLost())
	}
	if err != nil {
		conv.close()
		return -1, err
	}
	defer func() {
		conv.close() // the process then ends
		if err := stuck.Reap(pid, stuck.Patience); err != nil {
			e.log.Warn("process that created a user namespace has not ended", "err", err)
		}
	}()
	if err := (mapper{}).write(pid, m); err != nil {
		return -1, err
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/user", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open user namespace: %w", err)
	}
	return fd, nil
}
