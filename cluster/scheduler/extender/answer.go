package extender

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// errTooMany is that an answer has more than was asked about.
var errTooMany = errors.New("it has more nodes than it was asked about")

// list is one of nodes in an answer. It takes no more of them than most: a few bytes of an answer
// can become much memory.
type list[T any] struct {
	most  int
	items []T // not nil if there is a list
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *list[T]) UnmarshalJSON(data []byte) error {
	l.items = nil
	d := json.NewDecoder(bytes.NewReader(data))
	switch t, err := d.Token(); {
	case err != nil:
		return err
	case t == nil: // as if it were not there
		return nil
	case t != json.Delim('['):
		return fmt.Errorf("%.20s is not a list", data)
	}
	l.items = []T{}
	for d.More() {
		if len(l.items) == l.most {
			return errTooMany
		}
		var item T
		if err := d.Decode(&item); err != nil {
			return err
		}
		l.items = append(l.items, item)
	}
	return nil
}

// named is a node of which only the name counts.
type named struct {
	Metadata struct{ Name string }
}

// filtered is upstream's ExtenderFilterResult.
type filtered struct {
	Nodes                      struct{ Items list[named] }
	NodeNames                  list[string]
	FailedNodes                extenderv1.FailedNodesMap
	FailedAndUnresolvableNodes extenderv1.FailedNodesMap
	Error                      string
}
