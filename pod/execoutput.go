package pod

import "sync"

// The output of ExecSync is kept in memory until the answer is encoded. One call is limited, as with the
// peers; but hundreds of calls, which hundreds of pods may make a kubelet do at once with their probes, would take
// gigabytes. So all of them together have a budget. A call that finds it used up goes on: its command runs to its
// end, its exit code is told, which is all that a probe asks for, and its output is cut and says so. To fail or to wait
// instead would let one pod's output fail the probes of others.

const (
	// execOutputBudget is what all calls together may keep, in bytes.
	execOutputBudget = 256 << 20
	// execOutputFree is what each stream may keep whatever others do. The kubelet shows 10 KiB of a probe's output.
	execOutputFree = 16 << 10
)

// outputBudget counts what is kept. The zero value has execOutputBudget.
type outputBudget struct {
	mu   sync.Mutex
	used int
	most int // for tests
}

// take takes n bytes, twice: the answer is a copy. false if there are not as many left.
func (b *outputBudget) take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.most
	if most == 0 {
		most = execOutputBudget
	}
	if b.used+2*n > most {
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

// keptOutput keeps the first bytes written to it and takes the rest without a word, so that
// the writer is not stopped.
type keptOutput struct {
	budget *outputBudget

	mu     sync.Mutex // copying may go on when the call has given up
	bytes  []byte
	taken  int  // of the budget
	cut    bool // the budget was used up
	closed bool // what comes now is dropped
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

// growLocked makes room for more. The old bytes are counted until they have been copied.
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

// result ends the keeping. The budget is used until free.
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
