package rules

// batch collects the elements that a transaction changes. One that is removed and put again with the same
// value does not change.
type batch struct {
	changes map[place]*difference // nil if all elements will be compared with the kernel's
	kinds   []newKind
	gone    []nftable.Element // of kinds
}

// place is where an element is.
type place struct {
	set      int
	key, end string
}

// difference is what happens to an element.
type difference struct {
	had, has    bool
	before, now string // values
}

// newKind is a kind that has no chain yet.
type newKind struct {
	*family
	kind uint32
}

func (b *batch) at(e nftable.Element) *difference {
	p := place{e.set, e.key, e.end}
	d := b.changes[p]
	if d == nil {
		d = &difference{}
		b.changes[p] = d
	}
	return d
}

// remove takes out an element that the kernel has, or that was put before.
func (b *batch) remove(e nftable.Element) {
	if b.Whole() {
		return
	}
	if d := b.at(e); d.has {
		d.has = false
	} else {
		d.had, d.before = true, e.value
	}
}

// put adds an element that the kernel has not, or that was removed before.
func (b *batch) put(e nftable.Element) {
	if b.Whole() {
		return
	}
	d := b.at(e)
	d.has, d.now = true, e.value
}

// replace changes the elements of a backend. Slots that stay as they are cost nothing.
func (b *batch) replace(p *port, before, now *backend) {
	if b.Whole() {
		return
	}
	for slot := range max(len(before.slots), len(now.slots)) {
		same := slot < len(before.slots) && slot < len(now.slots) && before.slots[slot] == now.slots[slot]
		if same && (before.ids == nil) == (now.ids == nil) && (now.ids == nil || before.ids[slot] == now.ids[slot]) {
			continue
		}
		if slot < len(before.slots) {
			b.Remove(p.endpoint(before, slot))
			if before.ids != nil {
				for _, e := range p.identity(before, slot) {
					b.Remove(e)
				}
			}
		}
	}
	for slot := range now.slots {
		same := slot < len(before.slots) && before.slots[slot] == now.slots[slot]
		if same && (before.ids == nil) == (now.ids == nil) && (now.ids == nil || before.ids[slot] == now.ids[slot]) {
			continue
		}
		b.Put(p.endpoint(now, slot))
		if now.ids != nil {
			for _, e := range p.identity(now, slot) {
				b.Put(e)
			}
		}
	}
}
