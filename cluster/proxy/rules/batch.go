package rules

import "github.com/coracle-project/coracle/cluster/nftable"

// batch collects the elements that a transaction changes.
type batch struct {
	*nftable.Batch
	chains []nftable.Chain // that were added
}

// addChain adds a chain that the kernel has not.
func (b *batch) addChain(c nftable.Chain) {
	b.chains = append(b.chains, c)
	b.AddChain(c)
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
