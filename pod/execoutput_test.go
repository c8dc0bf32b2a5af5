package pod

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/coracle-project/coracle/pod/streams"
)

// Many commands at once print more than fits into the budget. Each call returns its exit code, and
// its output is whole or marked as cut. The kept output stays within the budget, which is free
// again afterwards.
func TestExecSyncOutputBudget(t *testing.T) {
	const calls, most, free = 40, 100 << 20, 16 << 10
	b := newBench(t)
	m, _ := b.manager(func(o *Options, _ *Deps) { o.ExecOutput = most })
	ctx := t.Context()
	id := must[string](t)(m.Create(ctx, must[string](t)(m.Run(ctx, podConfig("p"))), containerConfig("run")))
	ok(t, m.StartContainer(ctx, id))
	results := make([]streams.ExecSyncResult, calls)
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() {
			r, err := m.ExecSync(ctx, streams.ExecRequest{Container: id, Command: []string{"flood"}}, 0)
			if err != nil {
				t.Error(err)
			}
			results[i] = r
		})
	}
	all.Wait()
	kept, cut := 0, 0
	for i, r := range results {
		kept += cap(r.Stdout)
		switch {
		case r.ExitCode != 3 || len(r.Stdout) < free || r.StderrCut || len(r.Stderr) > 0:
			t.Errorf("call %d: code %d, %d and %d bytes", i, r.ExitCode, len(r.Stdout), len(r.Stderr))
		case r.StdoutCut:
			cut++
		case len(r.Stdout) != streams.MaxExecSyncOutput:
			t.Errorf("call %d: %d bytes without a word", i, len(r.Stdout))
		}
	}
	if kept > most/2+calls*free || cut == 0 {
		t.Errorf("%d bytes are kept, %d of %d calls are cut", kept, cut, calls)
	}
	// A command that prints little is not affected.
	r := must[streams.ExecSyncResult](t)(m.ExecSync(ctx, streams.ExecRequest{Container: id, Command: []string{"env"}}, 0))
	if r.StdoutCut || !bytes.Contains(r.Stdout, []byte("A=image")) {
		t.Errorf("output %q, cut: %t", r.Stdout, r.StdoutCut)
	}
	for i := range results {
		results[i].Free()
		results[i].Free() // a second call does no harm
	}
	if n := m.KeptOutput(); n != 0 {
		t.Errorf("%d bytes are never given back", n)
	}
	whole := must[streams.ExecSyncResult](t)(m.ExecSync(ctx, streams.ExecRequest{Container: id, Command: []string{"flood"}}, 0))
	if whole.StdoutCut || len(whole.Stdout) != streams.MaxExecSyncOutput {
		t.Errorf("%d bytes, cut: %t", len(whole.Stdout), whole.StdoutCut)
	}
	whole.Free()
}

// Output that comes after a call has given up is dropped: the shared budget is free again.
func TestExecSyncOutputComesLate(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	id := must[string](t)(m.Create(t.Context(), must[string](t)(m.Run(t.Context(), podConfig("p"))), containerConfig("run")))
	ok(t, m.StartContainer(t.Context(), id))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.ExecSync(ctx, streams.ExecRequest{Container: id, Command: []string{"late"}}, 0); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	b.late.Wait()
	if n := m.KeptOutput(); n != 0 {
		t.Errorf("%d bytes are never given back", n)
	}
}
