package framework

import "sync/atomic"

// Key is where a plugin keeps a value of type T in a CycleState. It is made once, as a package
// variable.
type Key[T any] struct{ slot int32 }

var keys atomic.Int32

// NewKey returns a key that no one else has.
func NewKey[T any]() Key[T] { return Key[T]{slot: keys.Add(1) - 1} }

// Write keeps v in s.
func (k Key[T]) Write(s *CycleState, v T) {
	if int(k.slot) >= len(s.values) {
		s.values = append(s.values, make([]any, int(keys.Load())-len(s.values))...)
	}
	s.values[k.slot] = v
}

// Read returns what Write kept in s, or the zero value.
func (k Key[T]) Read(s *CycleState) T {
	if int(k.slot) < len(s.values) {
		if v, ok := s.values[k.slot].(T); ok {
			return v
		}
	}
	var zero T
	return zero
}

// Cloner is a value in a CycleState that a PodChanger changes, so that each what-if needs its own.
type Cloner interface{ Clone() any }

// CycleState is what plugins have computed of one pod. It is written at points that run alone and
// read at those that run in parallel.
type CycleState struct {
	// Nodes is the cluster as this cycle sees it; nil from PreBind on, which is alongside later
	// cycles.
	Nodes *Snapshot
	// Nominated are the pods that wait for room on the nodes that preemption has chosen for them.
	Nominated Nominations

	values   []any
	filters  []Filter
	changers []PodChanger
	verdicts *table // of filters, for pods like this one; nil if there is none
}

// Nominations are the pods nominated to each node, by the node's name. It is never changed.
type Nominations map[string][]*PodInfo

// NewCycleState returns the state of a cycle over nodes.
func NewCycleState(nodes *Snapshot, nominated Nominations) *CycleState {
	return &CycleState{Nodes: nodes, Nominated: nominated, values: make([]any, keys.Load())}
}

// Clone returns a state that PodChangers can change without s noticing.
func (s *CycleState) Clone() *CycleState {
	c := *s
	c.values = make([]any, len(s.values))
	for i, v := range s.values {
		if cl, ok := v.(Cloner); ok {
			v = cl.Clone()
		}
		c.values[i] = v
	}
	return &c
}
