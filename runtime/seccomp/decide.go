package seccomp

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// decide is the first point of the program.
func decide(g *graph, p *profile, on host) (*node, error) {
	root := g.ret(unix.SECCOMP_RET_KILL_THREAD) // as libseccomp: of an unknown architecture
	for _, a := range slices.Backward(p.archs) {
		if a == archX32 {
			continue // goes with x86-64, whose audit arch it has
		}
		n, err := newNumbers(g, p, a)
		if err != nil {
			return nil, err
		}
		root = g.jump(codeEqual, a.audit, g.load(numberWord, n.search()), root)
	}
	return g.load(archWord, root), nil
}

// numbers decides by the number of a call.
type numbers struct {
	graph *graph
	arch  *arch
	x32   bool // x86-64 with x32
	calls map[uint32]*node
	// last is the highest number that the profile names, 0 for none; last32 is that of x32.
	last, last32 uint32
	// enosys: numbers above are answered with ENOSYS.
	enosys bool
	other  *node
}

func newNumbers(g *graph, p *profile, a *arch) (*numbers, error) {
	n := &numbers{
		graph: g, arch: a, other: g.ret(p.other), calls: make(map[uint32]*node, len(p.rules)),
		enosys: !permits(p.other), last: p.last(a),
	}
	list := []*arch{a}
	if a == archX8664 && slices.Contains(p.archs, archX32) {
		n.x32, n.last32 = true, p.last(archX32)
		list = append(list, archX32)
	}
	for _, a := range list {
		byNumber, err := p.byNumber(a)
		if err != nil {
			return nil, err
		}
		for _, nr := range slices.Sorted(maps.Keys(byNumber)) {
			n.calls[nr] = g.arguments(byNumber[nr], a.wide, p.other)
			if len(g.nodes) > 8*maxInsns {
				return nil, errTooLong
			}
		}
	}
	return n, nil
}

// permits tells actions after which a call is made: what is answered with ENOSYS would not
// be under such a default.
func permits(action uint32) bool {
	switch action & unix.SECCOMP_RET_ACTION_FULL {
	case unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_LOG, unix.SECCOMP_RET_TRACE:
		return true
	}
	return false
}

// skipped is the number that a tracer sets for a call that is not to be made: it is seen
// by the filter, and is no call of x32 although it has that bit (seccomp(2)).
const skipped = ^uint32(0)

// at is what happens to a call with the number.
func (n *numbers) at(nr uint32) *node {
	last := n.last
	if n.arch == archX8664 && nr&x32Bit != 0 {
		last = n.last32
	}
	if n.enosys && last != 0 && nr > last {
		return n.graph.ret(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS))
	}
	if n.arch == archX8664 && !n.x32 && nr >= x32Bit && nr != skipped {
		return n.graph.ret(unix.SECCOMP_RET_KILL_THREAD)
	}
	if call, ok := n.calls[nr]; ok {
		return call
	}
	return n.other
}

// segment is numbers that are decided alike, from the first up to the next segment's.
type segment struct {
	first uint32
	node  *node
}

// search finds the number's segment by halving. Where one number is apart from its
// neighbours, one comparison for equality does for two.
func (n *numbers) search() *node { return n.graph.search(n.segments()) }

func (n *numbers) segments() []segment {
	// The numbers at which something may change.
	starts := append(make([]uint32, 0, 7+2*len(n.calls)), 0, x32Bit, 2*x32Bit, 3*x32Bit, skipped, n.last+1, n.last32+1)
	for nr := range n.calls {
		starts = append(starts, nr, nr+1)
	}
	slices.Sort(starts)
	var list []segment
	for _, first := range slices.Compact(starts) {
		if at := n.at(first); len(list) == 0 || list[len(list)-1].node != at {
			list = append(list, segment{first, at})
		}
	}
	return list
}

func (g *graph) search(list []segment) *node {
	switch {
	case len(list) == 1:
		return list[0].node
	case len(list) == 3 && list[0].node == list[2].node && list[1].first+1 == list[2].first:
		return g.jump(codeEqual, list[1].first, list[1].node, list[0].node)
	}
	half := len(list) / 2
	return g.jump(codeFrom, list[half].first, g.search(list[half:]), g.search(list[:half]))
}

var errTooLong = fmt.Errorf("it needs more than the %d instructions that the kernel allows: use fewer rules with args", maxInsns)
