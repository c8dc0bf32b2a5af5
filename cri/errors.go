package cri

import (
	"context"
	"errors"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod/errdefs"
)

// kinds maps kinds of error to status codes. The first that matches wins, so what
// the caller can act on comes before what merely caused it.
var kinds = []struct {
	err  error
	code codes.Code
}{
	{errdefs.ErrInvalid, codes.InvalidArgument},
	{errdefs.ErrUnsupported, codes.Unimplemented},
	{errdefs.ErrExists, codes.AlreadyExists},
	{errdefs.ErrPrecondition, codes.FailedPrecondition},
	{errdefs.ErrExhausted, codes.ResourceExhausted},
	{errdefs.ErrNotFound, codes.NotFound},
	{image.ErrInvalidReference, codes.InvalidArgument},
	{image.ErrNotFound, codes.NotFound},
	{image.ErrPlatform, codes.NotFound},
	{image.ErrUnauthorized, codes.Unauthenticated},
	{image.ErrUntrusted, codes.PermissionDenied},
	{image.ErrNoKey, codes.PermissionDenied},
	{image.ErrInvalidImage, codes.InvalidArgument},
	{image.ErrLayerInUse, codes.FailedPrecondition},
	// A deadline inside a dialled registry or shim is also unavailability; the
	// deadline is what the kubelet looks for.
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{context.Canceled, codes.Canceled},
	{errdefs.ErrUnavailable, codes.Unavailable},
	{image.ErrUnavailable, codes.Unavailable},
	{syscall.ENOSPC, codes.ResourceExhausted},
	{syscall.EDQUOT, codes.ResourceExhausted},
	{syscall.ENOMEM, codes.ResourceExhausted},
	{syscall.EMFILE, codes.ResourceExhausted},
	{syscall.ENFILE, codes.ResourceExhausted},
}

// toStatus gives err the code that the kubelet expects and keeps its text. An error
// without a kind that has a code (from validation at this edge) keeps it; with a kind,
// a code below it is of some other protocol (the shim's) and means nothing here.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return status.Error(k.code, err.Error())
		}
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unknown, err.Error())
}

// pullError puts before the text of a failed pull the name by which the kubelet knows
// the kind, since it compares texts (cri-api's pkg/errors). It sees the text alone only
// if the code is Unknown: others are put before it (cri-client's remote_image.go).
func pullError(err error) error {
	for kind, name := range map[error]error{
		image.ErrUntrusted:   crierrors.ErrSignatureValidationFailed,
		image.ErrUnavailable: crierrors.ErrRegistryUnavailable,
	} {
		if errors.Is(err, kind) {
			return status.Errorf(codes.Unknown, "%v: %v", name, err)
		}
	}
	return err
}
