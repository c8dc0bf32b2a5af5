// Package errdefs has the kinds of error of pods and containers, and has errors name the operation
// and the object.
package errdefs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/snapshot"
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

// kinds says which kind of ours an error of a part below is.
var kinds = []struct{ below, kind error }{
	{client.ErrUnavailable, ErrUnavailable},
	{client.ErrNotRunning, ErrPrecondition},
	{client.ErrInvalid, ErrInvalid},
	{client.ErrExhausted, ErrExhausted},
	{client.ErrExists, ErrExists},
	{client.ErrNotFound, ErrPrecondition}, // we know the container, so it is not the caller's mistake
	{image.ErrNotFound, ErrNotFound},
	{image.ErrInvalidReference, ErrInvalid},
	{nspin.ErrInvalid, ErrInvalid},
	{network.ErrConfig, ErrPrecondition},
	{network.ErrExhausted, ErrExhausted},
	{network.ErrPortInUse, ErrPrecondition},
	{snapshot.ErrLayerMissing, ErrPrecondition},
	{snapshot.ErrExists, ErrExists},
}

// During names the operation and object that an error happened to, unless a part below
// has named them already, and gives it a kind if it has none yet. It returns nil for nil.
func During(op, object string, err error) error {
	if err == nil {
		return nil
	}
	named := err
	if what := op + " " + object + ": "; !strings.HasPrefix(err.Error(), what) {
		named = fmt.Errorf("%s%w", what, err)
	}
	for _, k := range []error{
		ErrNotFound, ErrInvalid, ErrExists, ErrPrecondition, ErrUnsupported, ErrExhausted, ErrUnavailable,
		context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, k) {
			return named
		}
	}
	for _, k := range kinds {
		if errors.Is(err, k.below) {
			return &failure{k.kind, named}
		}
	}
	return named
}
