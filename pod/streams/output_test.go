package streams

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/coracle-project/coracle/pod/podtest"
)

// Many commands at once print more than fits into the budget. Each call returns its exit code, and
// its output is whole or marked as cut. The kept output stays within the budget, which is free
// again afterwards.
func TestExecSyncOutputBudget(t *testing.T) {
	const calls, most = 40, 100 << 20
	b := newBench(t, "")
	b.output.most = most
	ctx := t.Context()
	results := make([]ExecSyncResult, calls)
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() {
			r, err := b.ExecSync(ctx, ExecRequest{Container: b.id, Command: []string{"flood"}}, 0)
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
		case r.ExitCode != 3 || len(r.Stdout) < execOutputFree || r.StderrCut || len(r.Stderr) > 0:
			t.Errorf("call %d: code %d, %d and %d bytes", i, r.ExitCode, len(r.Stdout), len(r.Stderr))
		case r.StdoutCut:
			cut++
		case len(r.Stdout) != MaxExecSyncOutput:
			t.Errorf("call %d: %d bytes without a word", i, len(r.Stdout))
		}
	}
	if kept > most/2+calls*execOutputFree || cut == 0 {
		t.Errorf("%d bytes are kept, %d of %d calls are cut", kept, cut, calls)
	}
	// A command that prints little is not affected.
	r, err := b.ExecSync(ctx, ExecRequest{Container: b.id, Command: []string{"print"}}, 0)
	podtest.OK(t, err)
	if r.StdoutCut || string(r.Stdout) != "few" {
		t.Errorf("output %q, cut: %t", r.Stdout, r.StdoutCut)
	}
	for i := range results {
		results[i].Free()
		results[i].Free() // a second call does no harm
	}
	if n := b.kept(); n != 0 {
		t.Errorf("%d bytes are never given back", n)
	}
	whole, err := b.ExecSync(ctx, ExecRequest{Container: b.id, Command: []string{"flood"}}, 0)
	podtest.OK(t, err)
	if whole.StdoutCut || len(whole.Stdout) != MaxExecSyncOutput {
		t.Errorf("%d bytes, cut: %t", len(whole.Stdout), whole.StdoutCut)
	}
	whole.Free()
}

// Output that comes after a call has given up is dropped: the shared budget is free again.
func TestExecSyncOutputComesLate(t *testing.T) {
	b := newBench(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.ExecSync(ctx, ExecRequest{Container: b.id, Command: []string{"late"}}, 0); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	b.shim.late.Wait()
	if n := b.kept(); n != 0 {
		t.Errorf("%d bytes are never given back", n)
	}
}
