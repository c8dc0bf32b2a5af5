// Package linear keeps what clients of an API server did and saw, and checks that it is
// linearizable: that each request could have taken effect at one moment between its call and its
// answer.
//
// A key is absent or has a value. Each value is written at most once, so a value identifies
// the resourceVersion that it was written with, and an update that names one is a compare-and-swap.
// A write whose outcome is unknown (its connection broke, or the answer was an error of the server)
// may take effect at any moment after its call, or never.
package linear

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Kind is what a request does.
type Kind string

// The kinds. Update succeeds only if the key has the value Expect.
const (
	Get    Kind = "get"
	Create Kind = "create"
	Update Kind = "update"
	Delete Kind = "delete"
)

// Request is one request. Value is what it writes.
type Request struct {
	Kind               Kind
	Key, Value, Expect string
}

// Outcome is what a client knows about its request.
type Outcome string

// The outcomes. NotSent is that of a request that no server can have received.
const (
	Done     Outcome = "done"
	Missing  Outcome = "missing"
	Exists   Outcome = "exists"
	Conflict Outcome = "conflict"
	Unknown  Outcome = "unknown"
	NotSent  Outcome = "not sent"
)

// Answer is an outcome, with what a Get that is Done has read.
type Answer struct {
	Outcome Outcome
	Value   string
}

// History is what several clients did and saw. They may use it at the same time.
type History struct {
	began time.Time

	mu  sync.Mutex
	all []porcupine.Operation
}

// New returns a history that begins now.
func New() *History { return &History{began: time.Now()} }

// Do has a client make a request, and keeps it with its answer.
func (h *History) Do(client int, r Request, ask func() Answer) Answer {
	call := time.Since(h.began)
	a := ask()
	end := time.Since(h.began)
	h.add(client, r, a, call, end)
	return a
}

func (h *History) add(client int, r Request, a Answer, call, end time.Duration) {
	if a.Outcome == NotSent || a.Outcome == Unknown && r.Kind == Get {
		return // it changes nothing, and says nothing
	}
	op := porcupine.Operation{ClientId: client, Input: r, Output: a, Call: int64(call), Return: int64(end)}
	if a.Outcome == Unknown {
		op.Return = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, op)
}

// Len is how many requests it has, and Unknown how many of them have an unknown outcome.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.all)
}

// Unknown is how many requests have an unknown outcome.
func (h *History) Unknown() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, op := range h.all {
		if op.Output.(Answer).Outcome == Unknown {
			n++
		}
	}
	return n
}

// MaybeDeleted is whether a delete of the key has an unknown outcome, so that the key may go at any
// time.
func (h *History) MaybeDeleted(key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.all, func(op porcupine.Operation) bool {
		r := op.Input.(Request)
		return r.Key == key && r.Kind == Delete && op.Output.(Answer).Outcome == Unknown
	})
}

// Keys are those of all requests, sorted.
func (h *History) Keys() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := make([]string, 0, len(h.all))
	for _, op := range h.all {
		keys = append(keys, op.Input.(Request).Key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Clone returns a copy, to be changed without the original.
func (h *History) Clone() *History {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &History{began: h.began, all: slices.Clone(h.all)}
}

// Check returns an error if the history is not linearizable, or if limit is too short to tell. It
// names a key, and what was done to that.
func (h *History) Check(limit time.Duration) error {
	for _, ops := range byKey(h.Clone().all) {
		switch result := porcupine.CheckOperationsTimeout(model, ops, limit); result {
		case porcupine.Ok:
		case porcupine.Illegal:
			return fmt.Errorf("what clients saw of %s is not linearizable:\n%s", ops[0].Input.(Request).Key, told(ops))
		default:
			return fmt.Errorf("whether what clients saw of %s is linearizable was not found out within %v", ops[0].Input.(Request).Key, limit)
		}
	}
	return nil
}

// byKey is the history of each key.
func byKey(all []porcupine.Operation) [][]porcupine.Operation {
	of := map[string]int{}
	var parts [][]porcupine.Operation
	for _, op := range all {
		key := op.Input.(Request).Key
		i, ok := of[key]
		if !ok {
			i = len(parts)
			of[key] = i
			parts = append(parts, nil)
		}
		parts[i] = append(parts[i], op)
	}
	return parts
}

func told(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var out strings.Builder
	for _, op := range ops {
		until := time.Duration(op.Return).String()
		if op.Return == math.MaxInt64 {
			until = "?"
		}
		fmt.Fprintf(&out, "%v to %s, client %d: %+v: %+v\n", time.Duration(op.Call), until, op.ClientId, op.Input, op.Output)
	}
	return out.String()
}

// model is one key. Its state is the value, "" if it is absent.
var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{""} },
	Step: func(state, input, output any) []any {
		value, r, a := state.(string), input.(Request), output.(Answer)
		if a.Outcome == Unknown {
			if effect, ok := r.effect(value); ok {
				return []any{value, effect}
			}
			return []any{value}
		}
		next, want := r.on(value)
		if want != a.Outcome || r.Kind == Get && a.Outcome == Done && a.Value != value {
			return nil
		}
		return []any{next}
	},
}).ToModel()

// effect returns what a write makes of a value, and whether it succeeds.
func (r Request) effect(value string) (next string, ok bool) {
	next, outcome := r.on(value)
	return next, outcome == Done
}

// on returns what a request makes of a value, and how it ends.
func (r Request) on(value string) (next string, outcome Outcome) {
	switch {
	case r.Kind == Create && value == "":
		return r.Value, Done
	case r.Kind == Create:
		return value, Exists
	case value == "":
		return "", Missing
	case r.Kind == Update && value != r.Expect:
		return value, Conflict
	case r.Kind == Update:
		return r.Value, Done
	case r.Kind == Delete:
		return "", Done
	}
	return value, Done
}
