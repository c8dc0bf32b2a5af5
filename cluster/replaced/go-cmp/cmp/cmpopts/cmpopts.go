// Package cmpopts is what programs link of github.com/google/go-cmp/cmp/cmpopts.
package cmpopts

import (
	"errors"

	"github.com/google/go-cmp/cmp"
)

// EquateErrors has two errors be equal if one of them is the other, in the sense of errors.Is.
func EquateErrors() cmp.Option {
	return func(x, y any) (equal, decided bool) {
		a, isError := x.(error)
		b, isErrorToo := y.(error)
		if !isError || !isErrorToo {
			return false, false
		}
		return errors.Is(a, b) || errors.Is(b, a), true
	}
}
