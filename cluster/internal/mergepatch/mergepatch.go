// Package mergepatch makes patches of objects.
package mergepatch

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Between returns the strategic merge patch that makes after out of before. It is {} if they are
// equal.
func Between[T any](before, after *T) ([]byte, error) {
	from, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	to, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	var schema T
	return strategicpatch.CreateTwoWayMergePatch(from, to, schema)
}
