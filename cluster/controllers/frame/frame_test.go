package frame

import (
	"errors"
	"log/slog"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Regression: each conflict of a first try was a warning, and the second try had nothing to say.
func TestAFirstConflictIsNoWarning(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("changed"))
	for name, tc := range map[string]struct {
		err   error
		tries int
		want  slog.Level
	}{
		"a first conflict":  {conflict, 0, slog.LevelDebug},
		"another conflict":  {conflict, 1, slog.LevelWarn},
		"any other failure": {errors.New("no"), 0, slog.LevelWarn},
	} {
		if got := levelOf(tc.err, tc.tries); got != tc.want {
			t.Errorf("%s: logged as %s, want %s", name, got, tc.want)
		}
	}
}
