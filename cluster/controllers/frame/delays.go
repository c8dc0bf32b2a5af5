package frame

import (
	"sync"
	"time"

	"github.com/coracle-project/coracle/cluster/internal/shrink"
)

// delays adds keys when a time has passed: of several times for one key, at the earliest.
//
// The queue can do that, too. But in the array that its heap is in, it keeps every key that has
// waited, as many as have waited at once. Of a thousand nodes that came and went, it would keep a
// thousand names for good.
type delays struct {
	add func(key string)

	mu      sync.Mutex
	waiting shrink.Map[string, *delay]
	stopped bool
}

type delay struct {
	timer *time.Timer
	due   time.Time
}

func newDelays(add func(key string)) *delays {
	return &delays{add: add, waiting: shrink.New[string, *delay]()}
}

func (l *delays) addAfter(key string, d time.Duration) {
	if d <= 0 {
		l.add(key)
		return
	}
	due := time.Now().Add(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	if w := l.waiting.Entries[key]; w != nil {
		if !due.Before(w.due) {
			return
		}
		w.timer.Stop()
	}
	w := &delay{due: due}
	w.timer = time.AfterFunc(d, func() { l.over(key, w) })
	l.waiting.Entries[key] = w
}

// over adds a key whose time has passed, unless an earlier time has replaced it meanwhile.
func (l *delays) over(key string, w *delay) {
	l.mu.Lock()
	valid := l.waiting.Entries[key] == w
	if valid {
		l.waiting.Delete(key)
	}
	l.mu.Unlock()
	if valid {
		l.add(key)
	}
}

// stop forgets all keys.
func (l *delays) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for _, w := range l.waiting.Entries {
		w.timer.Stop()
	}
	l.waiting = shrink.Map[string, *delay]{}
}
