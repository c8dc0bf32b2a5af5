package failure

import (
	"errors"
	"fmt"
	"testing"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/shim/client"
)

func TestDuringNamesTheOperationOnce(t *testing.T) {
	below := fmt.Errorf("exec in container a: %w", client.ErrNotRunning)
	for _, tt := range []struct {
		name, op string
		want     string
	}{
		{"named already", "exec in container", "exec in container a: container is not running"},
		{"another operation", "attach to container", "attach to container a: exec in container a: container is not running"},
	} {
		err := During(tt.op, "a", below)
		if err.Error() != tt.want || !errors.Is(err, errdefs.ErrPrecondition) || !errors.Is(err, client.ErrNotRunning) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}
