package framework

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
)

// Repeatable is a Filter or Score that gives all pods of one shape the same answer of a node, as
// long as the node is the same.
type Repeatable interface {
	Plugin
	// Shape appends to b all but the node that the plugin's answers depend on, in a form that other
	// plugins' cannot be taken for. False says that they depend on more.
	Shape(b []byte, state *CycleState, pod *PodInfo) ([]byte, bool)
}

// AppendInts appends numbers to a shape.
func AppendInts(b []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		b = binary.AppendVarint(b, n)
	}
	return b
}

// AppendStrings appends strings to a shape.
func AppendStrings(b []byte, strings ...string) []byte {
	for _, s := range strings {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}

// AppendTolerations appends what tolerations tolerate to a shape.
func AppendTolerations(b []byte, tolerations []v1.Toleration) []byte {
	b = AppendInts(b, int64(len(tolerations)))
	for i := range tolerations {
		t := &tolerations[i]
		b = AppendStrings(b, t.Key, string(t.Operator), t.Value, string(t.Effect))
	}
	return b
}

// table has the answers of plugins for pods of one shape, by the nodes' places in a Snapshot. Pods
// mostly come in many of the same, and each changes one node.
type table struct {
	shape []byte
	// generations are those of the nodes that the answers are of, 0 for none.
	generations []int64
	statuses    []*Status // of filters
	points      []int64   // of scores: those of one node together
}

// tablesKept is for how many shapes a profile keeps what filters say, and what scores.
const tablesKept = 4

// recall returns the table of a shape, of the last ones that were asked for. It is empty if there
// was none, and has width scores for each node.
func recall(tables *[]*table, shape []byte, nodes, width int) *table {
	i := slices.IndexFunc(*tables, func(t *table) bool { return bytes.Equal(t.shape, shape) })
	if i < 0 {
		if len(*tables) < tablesKept {
			*tables = append(*tables, new(table))
		}
		i = len(*tables) - 1
		(*tables)[i].shape = append((*tables)[i].shape[:0], shape...)
		clear((*tables)[i].generations)
	}
	t := (*tables)[i]
	copy((*tables)[1:i+1], (*tables)[:i])
	(*tables)[0] = t
	if len(t.generations) != nodes || len(t.points) != nodes*width {
		t.generations, t.points = make([]int64, nodes), make([]int64, nodes*width)
	}
	if width == 0 && len(t.statuses) != nodes {
		t.statuses = make([]*Status, nodes)
	}
	return t
}

// appendShape appends what a plugin's answers depend on; false if they do not repeat.
func appendShape(b []byte, pl Plugin, state *CycleState, pod *PodInfo) ([]byte, bool) {
	r, ok := pl.(Repeatable)
	if !ok {
		return b, false
	}
	return r.Shape(AppendStrings(b, pl.Name()), state, pod)
}

// verdicts returns the table of what state's filters say, nil if one of them may say something else
// of the same node.
func (p *Profile) verdicts(state *CycleState, pod *PodInfo) *table {
	// Pods that wait for room on a node may count there.
	if state.Nodes == nil || len(state.Nodes.Generations) != len(state.Nodes.Nodes) || len(state.Nominated) > 0 {
		return nil
	}
	p.shape = p.shape[:0]
	for _, pl := range state.filters {
		var ok bool
		if p.shape, ok = appendShape(p.shape, pl, state, pod); !ok {
			return nil
		}
	}
	return recall(&p.filtered, p.shape, len(state.Nodes.Nodes), 0)
}

// FilterAt is Filter of the node at a place in state.Nodes. Nodes that are as they were are not
// looked at again for pods like earlier ones. It may be called for several places at a time.
func (p *Profile) FilterAt(state *CycleState, pod *PodInfo, place int) *Status {
	t := state.verdicts
	if t == nil {
		return p.Filter(state, pod, state.Nodes.Nodes[place])
	}
	if generation := state.Nodes.Generations[place]; t.generations[place] != generation {
		status := p.Filter(state, pod, state.Nodes.Nodes[place])
		if !status.OK() && !status.Rejected() {
			return status // an error is tried again
		}
		t.generations[place], t.statuses[place] = generation, status
	}
	return t.statuses[place]
}

// scoring is one call of Profile.Score.
type scoring struct {
	state   *CycleState
	pod     *PodInfo
	nodes   []*NodeInfo
	places  []int // in state.Nodes; nil if not known
	plugins []weighted
	single  []int64 // each plugin's scores of all nodes
	failed  []atomic.Pointer[Status]
	// table has the scores of plugins that repeat them, nil if there are none, and columns where
	// there: -1 for those of other plugins.
	table   *table
	columns []int
	width   int
}

// recall finds the table.
func (s *scoring) recall(p *Profile) {
	if s.places == nil || len(s.state.Nodes.Generations) != len(s.state.Nodes.Nodes) {
		return
	}
	p.shape, p.columns = p.shape[:0], p.columns[:0]
	for _, pl := range s.plugins {
		shape, ok := appendShape(p.shape, pl.Score, s.state, s.pod)
		if !ok {
			p.columns = append(p.columns, -1)
			continue
		}
		p.shape, p.columns = shape, append(p.columns, s.width)
		s.width++
	}
	if s.width > 0 {
		s.table, s.columns = recall(&p.scored, p.shape, len(s.state.Nodes.Nodes), s.width), p.columns
	}
}

// score has the plugins score the nth node.
func (s *scoring) score(n int) {
	if s.table == nil {
		for i := range s.plugins {
			s.ask(i, n)
		}
		return
	}
	place, ok := s.places[n], true
	generation := s.state.Nodes.Generations[place]
	row := s.table.points[place*s.width : (place+1)*s.width]
	known := s.table.generations[place] == generation
	for i := range s.plugins {
		switch column := s.columns[i]; {
		case column < 0:
			s.ask(i, n)
		case known:
			s.single[i*len(s.nodes)+n] = row[column]
		default:
			ok = s.ask(i, n) && ok
			row[column] = s.single[i*len(s.nodes)+n]
		}
	}
	if ok {
		s.table.generations[place] = generation
	}
}

// ask has the ith plugin score the nth node, and says whether it could.
func (s *scoring) ask(i, n int) bool {
	score, status := s.plugins[i].Score.Score(s.state, s.pod, s.nodes[n])
	s.single[i*len(s.nodes)+n] = score
	if status != nil && status.code != Success {
		s.failed[i].Store(status)
		return false
	}
	return true
}
