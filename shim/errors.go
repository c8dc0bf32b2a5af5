package shim

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/containerlog"
)

// Kinds of error of the shim's own, next to those of package runtime.
var (
	errInvalid       = containerlog.ErrInvalid
	errUnimplemented = errors.New("not implemented by this shim")
	errPrecondition  = errors.New("not possible now")
	errExhausted     = errors.New("too many execs are running; end some")
)

// toStatus gives an error the code that travels over ttrpc. The codes are those of containerd's
// errdefs, so that containerd understands them, too.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codeOf(err), once(err.Error()))
}

// once drops a beginning that is there twice: the engine names operation and
// container in its errors, as we do in ours.
func once(text string) string {
	for {
		i := strings.Index(text, ": ") + len(": ")
		if i < len(": ") || !strings.HasPrefix(text[i:], text[:i]) {
			return text
		}
		text = text[i:]
	}
}

func codeOf(err error) codes.Code {
	for _, k := range []struct {
		kind error
		code codes.Code
	}{
		{runtime.ErrNotFound, codes.NotFound},
		{runtime.ErrExists, codes.AlreadyExists},
		{runtime.ErrNotRunning, codes.FailedPrecondition},
		{runtime.ErrRunning, codes.FailedPrecondition},
		{runtime.ErrInvalidID, codes.InvalidArgument},
		{runtime.ErrInvalidSpec, codes.InvalidArgument},
		{errInvalid, codes.InvalidArgument},
		{errPrecondition, codes.FailedPrecondition},
		{errExhausted, codes.ResourceExhausted},
		{errEnding, codes.Unavailable},
		{errUnmanaged, codes.DataLoss},
		{errUnmanagedForNow, codes.ResourceExhausted},
		{errUnimplemented, codes.Unimplemented},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
	} {
		if errors.Is(err, k.kind) {
			return k.code
		}
	}
	return codes.Unknown
}
