package csi

import "sync"

// index is what is kept in memory of published volumes, by State. It is safe for concurrent use.
type index struct {
	mu      sync.Mutex
	volumes map[string]publication
}

// publication is what is known of a published volume beyond its record.
type publication struct {
	// republish is that its driver wants to be called regularly.
	republish bool
	// found is that an earlier kubelet has published it, and that it was not kept since.
	found bool
	// grown is the size that the driver has been told, nil if it has been told none.
	grown *int64
	// failed is the last growth that the driver has ended with an error, nil if there is none.
	failed *failedGrowth
}

// get returns what is known of a volume.
func (x *index) get(state string) publication {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.volumes[state]
}

// update has f change what is known of a volume.
func (x *index) update(state string, f func(*publication)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.volumes[state]
	f(&p)
	if x.volumes == nil {
		x.volumes = map[string]publication{}
	}
	x.volumes[state] = p
}

// forget drops what is known of a volume.
func (x *index) forget(state string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.volumes, state)
}
