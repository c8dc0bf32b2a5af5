package plugins

import (
	"sync"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// perNode remembers the answers to some questions about the pods of each node, and asks again only
// where a node has changed. Pods of one workload ask the same, one after the other, and each that
// is placed changes one node: so an answer costs a comparison per node, not a look at every pod.
type perNode[T any] struct {
	mu        sync.Mutex
	questions map[string]*question[T]
	uses      uint64
}

type question[T any] struct {
	used        uint64
	generations []int64 // by slot, of what answers are about
	answers     []T
}

// maxQuestions bounds what is remembered; the one not asked for longest is forgotten.
const maxQuestions = 64

// askGrain is for how many nodes asking is worth another goroutine.
const askGrain = 512

// of returns the answers for all nodes, by slot. key must contain all that answer depends on
// besides the node. The result is valid until the same question is asked again, which is not before
// the next pod's cycle.
func (c *perNode[T]) of(key string, nodes *framework.Snapshot, parallel framework.Parallel, answer func(*framework.NodeInfo) T) []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uses++
	q := c.questions[key]
	if q == nil {
		if c.questions == nil {
			c.questions = make(map[string]*question[T])
		}
		if len(c.questions) >= maxQuestions {
			c.forgetOldestLocked()
		}
		q = &question[T]{}
		c.questions[key] = q
	}
	q.used = c.uses
	if more := nodes.Slots - len(q.answers); more > 0 {
		q.answers = append(q.answers, make([]T, more)...)
		q.generations = append(q.generations, make([]int64, more)...)
	}
	parallel.Do(len(nodes.Nodes), askGrain, func(from, to int) {
		for _, n := range nodes.Nodes[from:to] {
			if q.generations[n.Slot] != n.Generation {
				q.generations[n.Slot], q.answers[n.Slot] = n.Generation, answer(n)
			}
		}
	})
	return q.answers
}

func (c *perNode[T]) forgetOldestLocked() {
	var oldest string
	for key, q := range c.questions {
		if oldest == "" || q.used < c.questions[oldest].used {
			oldest = key
		}
	}
	delete(c.questions, oldest)
}

// count returns how many of pods match holds for.
func count(pods []*framework.PodInfo, match func(*framework.PodInfo) bool) int32 {
	var n int32
	for _, p := range pods {
		if match(p) {
			n++
		}
	}
	return n
}
