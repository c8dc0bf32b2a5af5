package rules

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// port is a Port with what it has in the kernel.
type port struct {
	Port
	*family
	backends []*backend // parallel to Backends
	shown    []shown    // parallel to Frontends
}

// backend is a Backend with what it has in the kernel. Endpoints keep their slots as long as they
// can.
type backend struct {
	number uint32 // 0: all numbers are in use, so it has no endpoints
	slots  []netip.AddrPort
	ids    []uint32 // parallel to slots; nil without affinity
	lastID uint32
	kind   uint32
}

// shown is what a frontend has in the kernel.
type shown bool

// mark is what a packet to the frontend gets.
func (p *port) mark(backend int, masquerade bool) string {
	b := p.backends[backend]
	v := b.number<<12 | b.kind
	if masquerade {
		v |= markMasquerade
	}
	return nftable.Native(v)
}

func (p *port) address(f Frontend) address { return address{p.IPv6, f.Addr, p.Protocol, f.Port} }

// key names a slot of a backend.
func (b *backend) key(slot int) string { return native2(b.number<<12, uint32(slot)) }

func (p *port) endpoint(b *backend, slot int) nftable.Element {
	return nftable.Element{Set: p.setID(setEp), Key: b.key(slot), Value: destination(b.slots[slot])}
}

// identity are the elements for affinity of an endpoint.
func (p *port) identity(b *backend, slot int) [2]nftable.Element {
	id := nftable.Native(b.number<<12 | b.ids[slot])
	return [2]nftable.Element{
		{Set: p.setID(setEpid), Key: b.key(slot), Value: id},
		{Set: p.setID(setByid), Key: id, Value: destination(b.slots[slot])},
	}
}

// endpoints yields the elements of the backend.
func (p *port) endpoints(b *backend) iter.Seq[nftable.Element] {
	return func(yield func(nftable.Element) bool) {
		for slot := range b.slots {
			if !yield(p.endpoint(b, slot)) {
				return
			}
			if b.ids == nil {
				continue
			}
			for _, e := range p.identity(b, slot) {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// frontend yields the elements of a frontend.
func (p *port) frontend(f Frontend) iter.Seq[nftable.Element] {
	return func(yield func(nftable.Element) bool) {
		a := p.address(f)
		everyone, inside := setSvc, setInside
		if !f.Addr.IsValid() {
			everyone, inside = setNodePort, setNodeIn
		}
		if !yield(nftable.Element{Set: p.setID(everyone), Key: a.key(), Value: p.mark(f.Backend, f.Masquerade)}) {
			return
		}
		if f.Inside != f.Backend && !yield(nftable.Element{Set: p.setID(inside), Key: a.key(), Value: p.mark(f.Inside, false)}) {
			return
		}
		if !f.Limited || !f.Addr.IsValid() {
			return
		}
		if !yield(nftable.Element{Set: p.setID(setLimited), Key: a.key()}) {
			return
		}
		for _, s := range widest(f.Sources) {
			if s.Addr().Is6() == p.IPv6 &&
				!yield(nftable.Element{
					Set: p.setID(setSources), Key: a.key() + nftable.Field(s.Addr()),
					End: a.key() + nftable.Field(nftable.Last(s)),
				}) {
				return
			}
		}
	}
}

// podElements are those of a pod's address.
func podElements(a netip.Addr) [2]nftable.Element {
	f := familyOf(a.Is6())
	return [2]nftable.Element{
		{Set: f.setID(setPods), Key: nftable.Field(a)},
		{Set: f.setID(setHairpin), Key: nftable.Field(a) + nftable.Field(a)},
	}
}

// Elements yields everything that is wanted, except what Stage has sent.
func (t layout) Elements() iter.Seq[nftable.Element] {
	return func(yield func(nftable.Element) bool) {
		for _, f := range families {
			for _, e := range t.kinds.elements(f) {
				if !yield(e) {
					return
				}
			}
		}
		for a := range t.pods {
			for _, e := range podElements(a) {
				if !yield(e) {
					return
				}
			}
		}
		sent := t.table.Ahead()
		for k, p := range t.ports {
			for _, b := range p.backends {
				if sent && t.staged[k] != nil {
					break
				}
				for e := range p.endpoints(b) {
					if !yield(e) {
						return
					}
				}
			}
			for i, f := range p.Frontends {
				if !p.shown[i] {
					continue
				}
				for e := range p.frontend(f) {
					if !yield(e) {
						return
					}
				}
			}
		}
	}
}

// retract takes a port's frontends back, and returns those addresses that others may want.
func (t *Table) retract(b *batch, k Key) (freed []address) {
	p := t.ports[k]
	if p == nil {
		return nil
	}
	for i, f := range p.Frontends {
		a := p.address(f)
		if !p.shown[i] {
			t.waiting[a] = slices.DeleteFunc(t.waiting[a], func(w Key) bool { return w == k })
			if len(t.waiting[a]) == 0 {
				delete(t.waiting, a)
			}
			continue
		}
		for e := range p.frontend(f) {
			b.Remove(e)
		}
		p.shown[i] = false
		delete(t.owners, a)
		if len(t.waiting[a]) > 0 {
			freed = append(freed, a)
		}
	}
	return freed
}

// update gives a port the backends that are wanted; nil removes it.
func (t *Table) update(b *batch, k Key, want *Port) {
	p := t.ports[k]
	if want == nil {
		if p != nil {
			for _, g := range p.backends {
				t.remove(b, p, g)
			}
			delete(t.ports, k)
		}
		return
	}
	if p == nil {
		p = &port{family: familyOf(want.IPv6)}
		t.ports[k] = p
	}
	p.Port, p.shown = *want, make([]shown, len(want.Frontends))
	p.Backends = nil // the endpoints are in the slots
	for i, w := range want.Backends {
		if i == len(p.backends) {
			g := &backend{number: t.adopted.number(p, i)}
			if t.numbers.claim(g.number) {
				g.slots, g.ids = t.adopted.endpoints(p.family, g.number)
				g.lastID = slices.Max(append(g.ids, 0))
			} else {
				g.number = t.numbers.take()
			}
			if g.number == 0 {
				t.Log.Error("a Service gets no connections: there are too many", "port", k, "max", maxNumber)
			}
			p.backends = append(p.backends, g)
		}
		t.fill(b, p, p.backends[i], w)
	}
	for len(p.backends) > len(want.Backends) {
		last := len(p.backends) - 1
		t.remove(b, p, p.backends[last])
		p.backends = p.backends[:last]
	}
}

func (t *Table) remove(b *batch, p *port, g *backend) {
	for e := range p.endpoints(g) {
		b.Remove(e)
	}
	t.numbers.release(g.number)
	t.kinds.release(p.family, g.kind)
}

// fill gives a backend the endpoints that are wanted. Those that stay keep their slots; new ones
// take the slots of those that go, and the last ones the slots that are free then.
func (t *Table) fill(b *batch, p *port, g *backend, want Backend) {
	var endpoints []netip.AddrPort
	if g.number != 0 {
		endpoints = firstDistinct(want.Endpoints)
	}
	before := backend{number: g.number}
	if !b.Whole() {
		before.slots, before.ids = slices.Clone(g.slots), slices.Clone(g.ids)
	}
	sticky := want.Affinity > 0
	if !sticky {
		g.ids = nil
	} else if g.ids == nil {
		g.ids = []uint32{}
		for range g.slots {
			g.ids = append(g.ids, g.nextID())
		}
	}
	var free []int
	if len(g.slots) == 0 { // a new backend
		g.slots = make([]netip.AddrPort, 0, len(endpoints))
	} else {
		wanted := make(map[netip.AddrPort]bool, len(endpoints))
		for _, e := range endpoints {
			wanted[e] = true
		}
		for slot, e := range g.slots {
			if wanted[e] {
				delete(wanted, e)
			} else {
				free = append(free, slot)
			}
		}
		endpoints = slices.DeleteFunc(endpoints, func(e netip.AddrPort) bool { return !wanted[e] })
	}
	for _, e := range endpoints {
		slot := len(g.slots)
		if len(free) > 0 {
			slot, free = free[0], free[1:]
			g.slots[slot] = e
		} else {
			g.slots = append(g.slots, e)
			if sticky {
				g.ids = append(g.ids, 0)
			}
		}
		if sticky {
			g.ids[slot] = g.nextID()
		}
	}
	for _, slot := range slices.Backward(free) {
		end := len(g.slots) - 1
		g.slots[slot] = g.slots[end]
		g.slots = g.slots[:end]
		if sticky {
			g.ids[slot] = g.ids[end]
			g.ids = g.ids[:end]
		}
	}
	kind, created := t.kinds.take(p.family, len(g.slots), want.Affinity, want.Drop)
	t.kinds.release(p.family, g.kind)
	g.kind = kind
	if created {
		c := t.kinds.chain(p.family, kind)
		b.addChain(c)
		b.Put(p.leads(kind, c.Name))
	}
	b.replace(p, &before, g)
}

// firstDistinct returns the first MaxEndpoints of a list, each once, in a list of its own.
func firstDistinct(all []netip.AddrPort) []netip.AddrPort {
	const few = 16 // a map would take longer
	first := make([]netip.AddrPort, 0, min(len(all), MaxEndpoints))
	var seen map[netip.AddrPort]bool
	if len(all) > few {
		seen = make(map[netip.AddrPort]bool, len(all))
	}
	for _, e := range all {
		if len(first) == MaxEndpoints {
			break
		}
		if seen == nil && slices.Contains(first, e) || seen[e] {
			continue
		}
		first = append(first, e)
		if seen != nil {
			seen[e] = true
		}
	}
	return first
}

// nextID returns an id that no endpoint of the backend has. It is not soon one that another had: a
// client that is remembered with that goes to the new endpoint, so that one would get more clients
// than the others.
func (b *backend) nextID() uint32 {
	for {
		if b.lastID = b.lastID%markEndpoint + 1; !slices.Contains(b.ids, b.lastID) {
			return b.lastID
		}
	}
}

// emit shows a port's frontends whose addresses no other port has.
func (t *Table) emit(b *batch, k Key) {
	p := t.ports[k]
	if p == nil {
		return
	}
	for i, f := range p.Frontends {
		t.show(b, k, p, i, f)
	}
}

func (t *Table) show(b *batch, k Key, p *port, i int, f Frontend) {
	a := p.address(f)
	if owner, taken := t.owners[a]; taken {
		if owner != k { // otherwise the Service names it twice
			t.waiting[a] = append(t.waiting[a], k)
			t.Log.Warn("two Services want the same address", "has", owner, "waits", k, "address", f.Addr, "port", f.Port)
		}
		return
	}
	t.owners[a], p.shown[i] = k, true
	if b.Whole() {
		return
	}
	for e := range p.frontend(f) {
		b.Put(e)
	}
}

// inherit gives an address that its owner gave up to the port that waits longest.
func (t *Table) inherit(b *batch, a address) {
	if _, taken := t.owners[a]; taken || len(t.waiting[a]) == 0 {
		return
	}
	k := t.waiting[a][0]
	t.waiting[a] = t.waiting[a][1:]
	if len(t.waiting[a]) == 0 {
		delete(t.waiting, a)
	}
	p := t.ports[k]
	for i, f := range p.Frontends {
		if p.address(f) == a && !p.shown[i] {
			t.show(b, k, p, i, f)
			return
		}
	}
}

func (t *Table) setPod(b *batch, a netip.Addr, here bool) {
	if t.pods[a] == here {
		return
	}
	for _, e := range podElements(a) {
		if here {
			b.Put(e)
		} else {
			b.Remove(e)
		}
	}
	if here {
		t.pods[a] = true
	} else {
		delete(t.pods, a)
	}
}
