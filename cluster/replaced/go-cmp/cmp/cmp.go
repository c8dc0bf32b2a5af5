// Package cmp is what programs link of github.com/google/go-cmp/cmp: etcd compares maps with it in
// checks that are off, and k8s.io/kube-scheduler the parts of a status. The original looks methods
// up by number, for which the linker has to keep every exported method of every type: 14 % of
// coracle-kube (docs/decisions/program-size.md).
//
// A function of the original that is missing here is a compile error of its caller.
package cmp

import (
	"fmt"
	"reflect"
)

// Option decides about some pairs of values. decided is false where the next option, or
// reflect.DeepEqual, has to.
type Option func(x, y any) (equal, decided bool)

// Equal says whether x and y are equal. Unlike in the original, methods Equal are not called, and
// options decide about x and y, not about what is in them.
func Equal(x, y any, opts ...Option) bool {
	for _, o := range opts {
		if equal, decided := o(x, y); decided {
			return equal
		}
	}
	return reflect.DeepEqual(x, y)
}

// Diff returns "" if x and y are equal, else both.
func Diff(x, y any, opts ...Option) string {
	if Equal(x, y, opts...) {
		return ""
	}
	return fmt.Sprintf("-%v\n+%v\n", x, y)
}
