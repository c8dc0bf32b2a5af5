package rules

import (
	"iter"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// Stage sends the endpoints of ports, and the chains that choose among them, ahead of the first
// Apply, which must have the same ports: no rule looks at them before. So the kernel can work while
// the caller still finds out about other ports. It does nothing once the table has been compared
// with what is wanted, or if the kernel has a table of an earlier process.
func (t *Table) Stage(ports map[Key]*Port) error {
	if !t.table.Ahead() {
		return nil
	}
	if t.staged == nil {
		t.staged = map[Key]*Port{}
	}
	b := &batch{Batch: t.table.Batch()}
	var added []*port
	for k, want := range ports {
		if want == nil || t.ports[k] != nil {
			continue
		}
		t.update(b, k, want)
		t.staged[k] = want
		added = append(added, t.ports[k])
	}
	return t.table.SendAhead(b.chains, endpointsOf(added))
}

// unstage forgets what Stage has sent, as it is not what is wanted.
func (t *Table) unstage() {
	t.staged = nil
	t.table.Reread()
}

func endpointsOf(ports []*port) iter.Seq[nftable.Element] {
	return func(yield func(nftable.Element) bool) {
		for _, p := range ports {
			for _, b := range p.backends {
				for e := range p.endpoints(b) {
					if !yield(e) {
						return
					}
				}
			}
		}
	}
}
