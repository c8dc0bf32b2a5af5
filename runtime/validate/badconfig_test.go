package validate_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/runtimetest"
	"github.com/coracle-project/coracle/runtime/validate"
)

// TestBadConfigs wants one clear sentence for each configuration that is wrong.
func TestBadConfigs(t *testing.T) {
	dir := bundle(t)
	if err := runtimetest.SpoilBundle(dir); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, c := range runtimetest.BadConfigs() {
		t.Run(c.Name, func(t *testing.T) {
			if names[c.Name] {
				t.Error("two cases have this name")
			}
			names[c.Name] = true
			if err := c.Write(dir, runtimetest.Spec("bad", "/bin/true")); err != nil {
				t.Fatal(err)
			}
			spec, err := runtime.LoadSpec(dir)
			if err == nil {
				err = validate.Spec(spec, dir)
			}
			if !errors.Is(err, runtime.ErrInvalidSpec) || !strings.Contains(err.Error(), c.Says) {
				t.Errorf("error %v, want ErrInvalidSpec saying %q", err, c.Says)
			} else if strings.ContainsAny(err.Error(), "\n\x00") || strings.Contains(err.Error(), "%!") {
				t.Errorf("error %q is no sentence", err)
			}
		})
	}
}

// BenchmarkValidate is part of each create, so it has to be cheap.
func BenchmarkValidate(b *testing.B) {
	dir, spec := bundle(b), runtimetest.Spec("one", "/bin/true")
	for b.Loop() {
		if err := validate.Spec(spec, dir); err != nil {
			b.Fatal(err)
		}
	}
}
