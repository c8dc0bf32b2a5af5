package peer

import (
	"sync"
	"time"
)

// uploads bounds what is sent to other nodes at the same time: to maxUploads in all, and to a fair
// share for each node. Without shares, one node that fetches slowly could keep all others from what
// is here.
type uploads struct {
	mu    sync.Mutex
	all   int
	held  map[string]int       // by node
	asked map[string]time.Time // when a node asked last
}

// askedFor is how long a node that has asked counts as one that the uploads are shared with. Busy
// clients ask again at least every second.
const askedFor = 5 * time.Second

func newUploads() *uploads {
	return &uploads{held: map[string]int{}, asked: map[string]time.Time{}}
}

// take counts an upload to a node, unless there are too many; done ends it.
func (u *uploads) take(name string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked[name] = now
	for other, last := range u.asked {
		if now.Sub(last) > askedFor {
			delete(u.asked, other)
		}
	}
	share := (maxUploads + len(u.asked) - 1) / len(u.asked)
	if u.all >= maxUploads || u.held[name] >= max(share, minShare) {
		return false
	}
	u.all++
	u.held[name]++
	return true
}

// done ends an upload that take counted.
func (u *uploads) done(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all--
	if u.held[name]--; u.held[name] == 0 {
		delete(u.held, name)
	}
}
