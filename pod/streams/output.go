package streams

import "sync"

// The output of ExecSync is kept in memory until the answer is encoded. Each call is limited, as in
// containerd and CRI-O. But a kubelet may run hundreds of probes at once, whose outputs together
// could take gigabytes. So all calls share a budget. If the budget is used up, a call still
// continues: its command runs to its end, the exit code, which is all that a probe needs, is
// returned, and the output is truncated and marked so. If the call failed or waited instead, one
// pod's output would fail the probes of others.

const (
	// execOutputBudget is how much all calls together may keep, in bytes.
	execOutputBudget = 256 << 20
	// execOutputFree is what each stream may always keep. The kubelet shows 10 KiB of a probe's
	// output.
	execOutputFree = 16 << 10
)

// outputBudget counts the bytes kept.
type outputBudget struct {
	mu   sync.Mutex
	used int
	most int
}

// take reserves 2n bytes, because the answer is a copy. It returns false if not enough are left.
func (b *outputBudget) take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+2*n > b.most {
		return false
	}
	b.used += 2 * n
	return true
}

func (b *outputBudget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= 2 * n
}

// keptOutput keeps the first bytes written to it and silently discards the rest, so that the writer
// never blocks.
type keptOutput struct {
	budget *outputBudget

	mu     sync.Mutex // copying may continue after the call has given up
	bytes  []byte
	taken  int  // of the budget
	cut    bool // the budget was used up
	closed bool // further bytes are dropped
}

func (k *keptOutput) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for rest := p; len(rest) > 0 && !k.closed && !k.cut && len(k.bytes) < MaxExecSyncOutput; {
		if len(k.bytes) == cap(k.bytes) && !k.growLocked() {
			k.cut = true
			break
		}
		n := min(len(rest), cap(k.bytes)-len(k.bytes))
		k.bytes, rest = append(k.bytes, rest[:n]...), rest[n:]
	}
	return len(p), nil
}

// growLocked makes room for more. The old bytes count until they have been copied.
func (k *keptOutput) growLocked() bool {
	if k.bytes == nil {
		k.bytes = make([]byte, 0, execOutputFree)
		return true
	}
	size := min(2*cap(k.bytes), MaxExecSyncOutput)
	if !k.budget.take(size) {
		return false
	}
	k.bytes = append(make([]byte, 0, size), k.bytes...)
	k.budget.give(k.taken)
	k.taken = size
	return true
}

// result ends the collection. The budget stays in use until free.
func (k *keptOutput) result() (b []byte, cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	return k.bytes, k.cut
}

func (k *keptOutput) free() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	k.budget.give(k.taken)
	k.taken = 0
}
