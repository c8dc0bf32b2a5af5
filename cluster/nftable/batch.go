package nftable

// Batch collects what a transaction changes. An element that is removed and put again with the same
// value does not change.
type Batch struct {
	changes map[Place]*difference // nil if all elements will be compared with the kernel's
	added   []Chain
	removed []string
}

// difference is what happens to an element.
type difference struct {
	had, has    bool
	before, now string // values
}

// Whole reports that the whole table will be compared with its layout, so that nothing has to be
// collected.
func (b *Batch) Whole() bool { return b.changes == nil }

func (b *Batch) at(e Element) *difference {
	p := Place{e.Set, e.Key, e.End}
	d := b.changes[p]
	if d == nil {
		d = &difference{}
		b.changes[p] = d
	}
	return d
}

// Remove takes out an element that the kernel has, or that was put before.
func (b *Batch) Remove(e Element) {
	if b.changes == nil {
		return
	}
	if d := b.at(e); d.has {
		d.has = false
	} else {
		d.had, d.before = true, e.Value
	}
}

// Put adds an element that the kernel has not, or that was removed before.
func (b *Batch) Put(e Element) {
	if b.changes == nil {
		return
	}
	d := b.at(e)
	d.has, d.now = true, e.Value
}

// AddChain adds a chain that the kernel has not.
func (b *Batch) AddChain(c Chain) {
	if b.changes != nil {
		b.added = append(b.added, c)
	}
}

// RemoveChain removes a chain to which no element leads any more.
func (b *Batch) RemoveChain(name string) {
	if b.changes != nil {
		b.removed = append(b.removed, name)
	}
}
