package network

import "sync"

// reaper calls a function with the keys that were added, in one background goroutine.
type reaper struct {
	work func(keys []string)
	wake chan struct{} // has room for one
	stop chan struct{}
	done chan struct{}

	mu      sync.Mutex
	queue   []string
	waiters []chan struct{} // closed when the queue of their time is worked off
	started bool
}

func newReaper(work func([]string)) *reaper {
	return &reaper{work: work, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
}

func (r *reaper) start() {
	r.mu.Lock()
	r.started = true
	r.mu.Unlock()
	go r.run()
}

// close works off the queue and ends the goroutine.
func (r *reaper) close() {
	r.mu.Lock()
	started := r.started
	r.started = false
	r.mu.Unlock()
	if started {
		close(r.stop)
		<-r.done
	}
}

func (r *reaper) add(key string) {
	r.mu.Lock()
	r.queue = append(r.queue, key)
	r.mu.Unlock()
	r.poke()
}

// idle returns a channel that is closed when all added before is worked off.
func (r *reaper) idle() <-chan struct{} {
	done := make(chan struct{})
	r.mu.Lock()
	r.waiters = append(r.waiters, done)
	r.mu.Unlock()
	r.poke()
	return done
}

func (r *reaper) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reaper) run() {
	defer close(r.done)
	for {
		select {
		case <-r.wake:
			r.drain()
		case <-r.stop:
			r.drain()
			return
		}
	}
}

func (r *reaper) drain() {
	r.mu.Lock()
	keys, waiters := r.queue, r.waiters
	r.queue, r.waiters = nil, nil
	r.mu.Unlock()
	if len(keys) > 0 {
		r.work(keys)
	}
	for _, w := range waiters {
		close(w)
	}
}
