package space

// Projects are taken from ranges of their own: low numbers are administrators', and
// the kubelet starts at 1048577.
const (
	firstProject = 0x0c0a0000 // of the first range
	projectRange = 0x00010000 // how many a range has
)

// Projects gives out the projects of one range. It is not safe for concurrent use.
type Projects struct {
	// Range is which one. Stores that may be on one file system need different ones.
	Range int

	last uint32 // given out
}

// Next finds a project that is not taken; 0 if all are, which is more than a node's containers.
func (p *Projects) Next(taken map[uint32]bool) uint32 {
	first := uint32(firstProject + p.Range*projectRange)
	n := p.last
	for range projectRange {
		if n++; n < first || n >= first+projectRange {
			n = first
		}
		if !taken[n] {
			p.last = n
			return n
		}
	}
	return 0
}
