// Package failure gives errors of the parts that pod/ uses (shim, images, network, snapshots) the
// kinds of package errdefs, and has errors name the operation and the object.
package failure

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/snapshot"
)

// kinds says which kind of ours an error of a part below is.
var kinds = []struct{ below, kind error }{
	{client.ErrUnavailable, errdefs.ErrUnavailable},
	{client.ErrNotRunning, errdefs.ErrPrecondition},
	{client.ErrInvalid, errdefs.ErrInvalid},
	{client.ErrExhausted, errdefs.ErrExhausted},
	{client.ErrExists, errdefs.ErrExists},
	{client.ErrNotFound, errdefs.ErrPrecondition}, // we know the container, so it is not the caller's mistake
	{image.ErrNotFound, errdefs.ErrNotFound},
	{image.ErrInvalidReference, errdefs.ErrInvalid},
	{nspin.ErrInvalid, errdefs.ErrInvalid},
	{network.ErrConfig, errdefs.ErrPrecondition},
	{network.ErrExhausted, errdefs.ErrExhausted},
	{network.ErrPortInUse, errdefs.ErrPrecondition},
	{snapshot.ErrLayerMissing, errdefs.ErrPrecondition},
	{snapshot.ErrExists, errdefs.ErrExists},
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
		errdefs.ErrNotFound, errdefs.ErrInvalid, errdefs.ErrExists, errdefs.ErrPrecondition,
		errdefs.ErrUnsupported, errdefs.ErrExhausted, errdefs.ErrUnavailable,
		context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, k) {
			return named
		}
	}
	for _, k := range kinds {
		if errors.Is(err, k.below) {
			return errdefs.Errorf(k.kind, "%w", named)
		}
	}
	return named
}
