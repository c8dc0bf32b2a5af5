package blobs

import "sync/atomic"

// unsynced counts what gets a name in the store, and what a sync has made sure of: what had its
// name when that began. An image that the index names is synced, but for what was damaged and has
// just been written again.
type unsynced struct{ begun, done, synced atomic.Uint64 }

// begin comes before something gets a name, and done after, or when it does not.
func (u *unsynced) begin() (done func()) {
	u.begun.Add(1)
	return func() { u.done.Add(1) }
}

func (u *unsynced) nothing() bool { return u.begun.Load() == u.synced.Load() }

// during runs a sync, of which there is one at a time.
func (u *unsynced) during(sync func() error) error {
	n := u.done.Load()
	err := sync()
	if err == nil {
		u.synced.Store(n)
	}
	return err
}
