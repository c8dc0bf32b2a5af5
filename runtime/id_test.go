package runtime_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/runtime"
)

func TestValidateID(t *testing.T) {
	for _, id := range []string{"a", "A-Z_0.9+", strings.Repeat("x", runtime.MaxIDLength), "..."} {
		if err := runtime.ValidateID(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{"", ".", "..", "a/b", "a b", "a\x00", "é", strings.Repeat("x", runtime.MaxIDLength+1)} {
		if err := runtime.ValidateID(id); !errors.Is(err, runtime.ErrInvalidID) {
			t.Errorf("%q: %v, want ErrInvalidID", id, err)
		}
	}
}
