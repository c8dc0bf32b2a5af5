package cmp_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestEqual(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		x, y any
		opts []cmp.Option
		want bool
	}{
		{"a", "a", nil, true},
		{"a", "b", nil, false},
		{[]string{"a"}, []string{"a"}, nil, true},
		{[]string(nil), []string{}, nil, false}, // as in the original
		{map[string]string{"k": "v"}, map[string]string{"k": "w"}, nil, false},
		{nil, nil, []cmp.Option{cmpopts.EquateErrors()}, true},
		{failed, nil, []cmp.Option{cmpopts.EquateErrors()}, false},
		{failed, fmt.Errorf("more: %w", failed), []cmp.Option{cmpopts.EquateErrors()}, true},
		{fmt.Errorf("more: %w", failed), failed, []cmp.Option{cmpopts.EquateErrors()}, true},
		{failed, context.Canceled, []cmp.Option{cmpopts.EquateErrors()}, false},
		{failed, errors.New("failed"), []cmp.Option{cmpopts.EquateErrors()}, false},
	} {
		if got := cmp.Equal(c.x, c.y, c.opts...); got != c.want {
			t.Errorf("Equal(%#v, %#v) is %v", c.x, c.y, got)
		}
		if diff := cmp.Diff(c.x, c.y, c.opts...); (diff == "") != c.want {
			t.Errorf("Diff(%#v, %#v) is %q", c.x, c.y, diff)
		}
	}
}
