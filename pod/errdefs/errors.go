// Package errdefs has the kinds of error of pods and containers.
package errdefs

import (
	"errors"
	"fmt"
)

// Kinds of error, for errors.Is; cri/ maps each to one gRPC code.
var (
	ErrNotFound     = errors.New("not found")           // NotFound
	ErrInvalid      = errors.New("invalid argument")    // InvalidArgument
	ErrExists       = errors.New("already exists")      // AlreadyExists
	ErrPrecondition = errors.New("failed precondition") // FailedPrecondition
	ErrUnsupported  = errors.New("not supported")       // Unimplemented
	ErrExhausted    = errors.New("resource exhausted")  // ResourceExhausted
	ErrUnavailable  = errors.New("unavailable")         // Unavailable
)

// failure is an error with a kind that does not show in its text: the text says what
// happened, the kind only steers the code that the edge answers with.
type failure struct {
	kind  error
	cause error
}

func (f *failure) Error() string   { return f.cause.Error() }
func (f *failure) Unwrap() []error { return []error{f.kind, f.cause} }

// Errorf makes an error of a kind; format and args as for fmt.Errorf.
func Errorf(kind error, format string, args ...any) error {
	return &failure{kind, fmt.Errorf(format, args...)}
}
