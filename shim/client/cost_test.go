package client_test

import (
	"bufio"
	"fmt"
	"os"
	"testing"
	"time"
)

// maxPerContainer is what an idle container may cost its shim, in bytes.
const maxPerContainer = 50 << 10

// A container costs the shim no more than its descriptors, a few goroutines and under 50 KB.
func TestCostOfAContainer(t *testing.T) {
	r := newRig(t)
	run := func(n int) {
		for range n {
			r.run(r.request("sleep 1000"))
		}
	}
	run(10) // whatever is made once: pools, caches, metadata of the heap
	before := r.settledPSS()
	const n = 30
	run(n)
	// It gives back what it can when it has been idle for a while, however long that takes here.
	per := 0
	r.waitFor(fmt.Sprintf("%d bytes or less per container", maxPerContainer), func() bool {
		per = (r.pss() - before) / n
		return per <= maxPerContainer
	})
	t.Logf("%d bytes per container, %d threads", per, r.threads())
}

// settledPSS is the shim's private and shared memory, when it has given back what it can.
func (r *rig) settledPSS() int {
	r.Helper()
	least := 1 << 40
	// It gives back two seconds after the last activity: nothing tells when.
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		least = min(least, r.pss())
	}
	return least
}

func (r *rig) pss() int {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", r.shimPID()))
	if err != nil {
		r.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var kb int
		if _, err := fmt.Sscanf(s.Text(), "Pss_Anon: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	r.Fatal("no Pss_Anon")
	return 0
}

func (r *rig) threads() int {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", r.shimPID()))
	if err != nil {
		r.Fatal(err)
	}
	return len(tasks)
}
