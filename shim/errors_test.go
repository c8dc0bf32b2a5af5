package shim

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/runtime"
)

// The message of a container that does not start named it three times, with 64 digits each.
func TestStatusNamesTheOperationOnce(t *testing.T) {
	engine := fmt.Errorf("create container a: %w", fmt.Errorf("%w: no program", runtime.ErrInvalidSpec))
	s := status.Convert(toStatus(fmt.Errorf("create container a: %w", engine)))
	if want := "create container a: invalid OCI spec: no program"; s.Message() != want || s.Code() != codes.InvalidArgument {
		t.Errorf("%s %q, want %q", s.Code(), s.Message(), want)
	}
	for _, text := range []string{"", "a", ": ", "a: b: a: b", "start container a: create container a: no", "a: ab: x"} {
		if got := status.Convert(toStatus(errors.New(text))).Message(); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}
