package compile

import (
	"math"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// portSet is a set of ports of all protocols, and of protocols without ports.
type portSet struct {
	ports  [3][]portSpan // of portProtocols; sorted, without any that overlap
	others bool          // protocols without ports
}

// portSpan is a range of ports, inclusive.
type portSpan struct{ first, last uint16 }

var portProtocols = [3]byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP}

var allSpans = []portSpan{{0, math.MaxUint16}}

// everyPort is all there is.
var everyPort = portSet{ports: [3][]portSpan{allSpans, allSpans, allSpans}, others: true}

func newPortSet(ports []rules.PortRange) portSet {
	var s portSet
	for _, p := range ports {
		switch i := slices.Index(portProtocols[:], p.Protocol); {
		case p == allPorts:
			return everyPort
		case i >= 0:
			s.ports[i] = append(s.ports[i], portSpan{p.First, p.Last})
		case p.Protocol == rules.Others:
			s.others = true
		}
	}
	for i := range s.ports {
		s.ports[i] = uniteSpans(s.ports[i])
	}
	return s
}

// ranges returns the set in the form that rules have. Sets of the same ports may have different
// ranges: adjacent ones stay apart if they were given so.
func (s *portSet) ranges() []rules.PortRange {
	if s.all() {
		return []rules.PortRange{allPorts}
	}
	var all []rules.PortRange
	for i, spans := range s.ports {
		for _, p := range spans {
			all = append(all, rules.PortRange{Protocol: portProtocols[i], First: p.first, Last: p.last})
		}
	}
	if s.others {
		all = append(all, rules.OtherProtocols)
	}
	return all
}

func (s *portSet) all() bool {
	return s.others && !slices.ContainsFunc(s.ports[:], func(p []portSpan) bool { return len(p) != 1 || p[0] != allSpans[0] })
}

func (s *portSet) empty() bool {
	return !s.others && len(s.ports[0])+len(s.ports[1])+len(s.ports[2]) == 0
}

// size is how much work the set is.
func (s *portSet) size() int { return 1 + len(s.ports[0]) + len(s.ports[1]) + len(s.ports[2]) }

// and returns what is in both. Sets share memory: none is changed after it was made.
func (s *portSet) and(o *portSet) portSet {
	if s.all() {
		return *o
	}
	if o.all() {
		return *s
	}
	out := portSet{others: s.others && o.others}
	for i := range out.ports {
		out.ports[i] = commonSpans(s.ports[i], o.ports[i])
	}
	return out
}

// or returns what is in one or the other.
func (s *portSet) or(o *portSet) portSet {
	if s.empty() {
		return *o
	}
	if o.empty() {
		return *s
	}
	out := portSet{others: s.others || o.others}
	for i := range out.ports {
		out.ports[i] = uniteSpans(slices.Concat(s.ports[i], o.ports[i]))
	}
	return out
}

// without returns what is in s only.
func (s *portSet) without(o *portSet) portSet {
	if o.all() {
		return portSet{}
	}
	out := portSet{others: s.others && !o.others}
	for i := range out.ports {
		out.ports[i] = spansWithout(s.ports[i], o.ports[i])
	}
	return out
}

// uniteSpans returns spans that cover the same ports, sorted, without any that overlap. It may
// change the argument. Adjacent ports stay apart: the kernel finds single ports faster than ranges.
func uniteSpans(spans []portSpan) []portSpan {
	if len(spans) < 2 {
		return spans
	}
	slices.SortFunc(spans, func(a, b portSpan) int { return int(a.first) - int(b.first) })
	united := spans[:1]
	for _, s := range spans[1:] {
		if last := &united[len(united)-1]; s.first <= last.last {
			last.last = max(last.last, s.last)
			continue
		}
		united = append(united, s)
	}
	return united
}

func commonSpans(a, b []portSpan) (out []portSpan) {
	for len(a) > 0 && len(b) > 0 {
		a, b = from(a, b[0].first), from(b, a[0].first)
		if len(a) == 0 || len(b) == 0 {
			break
		}
		if first, last := max(a[0].first, b[0].first), min(a[0].last, b[0].last); first <= last {
			out = append(out, portSpan{first, last})
		}
		if a[0].last < b[0].last {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

// from returns the spans that do not end before a port.
func from(spans []portSpan, port uint16) []portSpan {
	if spans[0].last >= port {
		return spans
	}
	return spans[sort.Search(len(spans), func(i int) bool { return spans[i].last >= port }):]
}

func spansWithout(a, b []portSpan) (out []portSpan) {
	for _, s := range a {
		for len(b) > 0 && b[0].last < s.first {
			b = b[1:]
		}
		first, over := s.first, false
		for _, o := range b {
			if s.last < o.first {
				break
			}
			if first < o.first {
				out = append(out, portSpan{first, o.first - 1})
			}
			if over = o.last >= s.last; over {
				break
			}
			first = o.last + 1
		}
		if !over {
			out = append(out, portSpan{first, s.last})
		}
	}
	return out
}
