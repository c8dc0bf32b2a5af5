package framework

import (
	"bytes"
	"encoding/binary"

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

// answers are those of a profile's plugins for pods of one shape. Pods mostly come in many of the
// same, and one pod changes one node.
type answers struct {
	filters, scores []byte // shapes, with the names of the plugins
	used            int64  // when last, in cycles
	verdicts        []verdict
	// scored has the generation of the node that scores are of, 0 for none. Those of the same plugin
	// are len(scored) apart.
	scored []int64
	points []int64
}

// verdict is what filters say of a node at a generation.
type verdict struct {
	generation int64
	status     *Status
}

// shapesKept is of how many shapes a profile keeps the answers.
const shapesKept = 4

// recall returns the answers for pods like this one, nil if they do not repeat.
func (p *Profile) recall(state *CycleState, pod *PodInfo) *answers {
	// Pods that wait for room on a node may count there.
	if state.Nodes == nil || len(state.Nodes.Generations) != len(state.Nodes.Nodes) || len(state.Nominated) > 0 {
		return nil
	}
	var ok bool
	if p.shape, ok = appendShapes(p.shape[:0], state.filters, state, pod); !ok {
		return nil
	}
	p.cycles++
	var found *answers
	for _, a := range p.answers {
		if bytes.Equal(a.filters, p.shape) {
			found = a
			break
		}
		if found == nil || a.used < found.used {
			found = a
		}
	}
	fits := found != nil && bytes.Equal(found.filters, p.shape)
	if !fits && len(p.answers) < shapesKept {
		found = new(answers)
		p.answers = append(p.answers, found)
	}
	found.used = p.cycles
	if n := len(state.Nodes.Nodes); !fits || len(found.verdicts) != n {
		found.reset(p.shape, n)
	}
	return found
}

// reset forgets all answers, for n nodes and a shape.
func (a *answers) reset(shape []byte, n int) {
	a.filters = append(a.filters[:0], shape...)
	a.scores = a.scores[:0]
	if len(a.verdicts) != n {
		a.verdicts, a.scored, a.points = make([]verdict, n), make([]int64, n), nil
		return
	}
	clear(a.verdicts)
}

// forScores returns a ready for the scores of plugins, nil if they do not repeat.
func (a *answers) forScores(p *Profile, plugins []weighted, state *CycleState, pod *PodInfo) *answers {
	if a == nil {
		return nil
	}
	var ok bool
	if p.shape, ok = appendShapes(p.shape[:0], plugins, state, pod); !ok {
		return nil
	}
	if !bytes.Equal(a.scores, p.shape) || len(a.points) != len(plugins)*len(a.scored) {
		a.scores = append(a.scores[:0], p.shape...)
		clear(a.scored)
		if size := len(plugins) * len(a.scored); len(a.points) != size {
			a.points = make([]int64, size)
		}
	}
	return a
}

// recallScores copies the scores of the node at places[i], if it is as it was, to each stride-th of
// scores.
func (a *answers) recallScores(state *CycleState, places []int, i int, scores []int64, stride int) bool {
	if a == nil || a.scored[places[i]] != state.Nodes.Generations[places[i]] {
		return false
	}
	for from, to := places[i], 0; from < len(a.points); from, to = from+len(a.scored), to+stride {
		scores[to] = a.points[from]
	}
	return true
}

// keepScores keeps what recallScores is to return.
func (a *answers) keepScores(state *CycleState, places []int, i int, scores []int64, stride int) {
	if a == nil {
		return
	}
	for to, from := places[i], 0; to < len(a.points); to, from = to+len(a.scored), from+stride {
		a.points[to] = scores[from]
	}
	a.scored[places[i]] = state.Nodes.Generations[places[i]]
}

// appendShapes appends what all plugins' answers depend on.
func appendShapes[T Plugin](b []byte, plugins []T, state *CycleState, pod *PodInfo) ([]byte, bool) {
	for _, pl := range plugins {
		var plugin Plugin = pl
		if w, ok := plugin.(weighted); ok {
			plugin = w.Score
		}
		r, ok := plugin.(Repeatable)
		if !ok {
			return b, false
		}
		if b, ok = r.Shape(AppendStrings(b, pl.Name()), state, pod); !ok {
			return b, false
		}
	}
	return b, true
}

// FilterAt is Filter of the node at a place in state.Nodes. Nodes that are as they were are not
// looked at again for pods like earlier ones. It may be called for several places at a time.
func (p *Profile) FilterAt(state *CycleState, pod *PodInfo, place int) *Status {
	a := state.answers
	if a == nil {
		return p.Filter(state, pod, state.Nodes.Nodes[place])
	}
	generation, v := state.Nodes.Generations[place], &a.verdicts[place]
	if v.generation != generation {
		v.generation, v.status = generation, p.Filter(state, pod, state.Nodes.Nodes[place])
		if !v.status.OK() && !v.status.Rejected() {
			v.generation = 0 // an error is tried again
		}
	}
	return v.status
}
