package shim

import (
	"fmt"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/runtime"
)

// What keeps a container unmanaged is not taken for an error about the call.
func TestUnmanagedCode(t *testing.T) {
	for _, tc := range []struct {
		reason error
		code   codes.Code
	}{
		{fmt.Errorf("record: %w", runtime.ErrNotFound), codes.DataLoss},
		{fmt.Errorf("record: %w", syscall.EBADMSG), codes.DataLoss},
		{fmt.Errorf("record: %w", syscall.EMFILE), codes.ResourceExhausted},
	} {
		u := &unmanaged{id: "a", reason: tc.reason}
		if got := status.Code(toStatus(u.err())); got != tc.code {
			t.Errorf("%v: %s, want %s", tc.reason, got, tc.code)
		}
		if got := codeOf(fmt.Errorf("delete %w: %w", u.err(), runtime.ErrRunning)); got != codes.FailedPrecondition {
			t.Errorf("delete: %s", got)
		}
	}
}
