package seccomp

import (
	"os"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == confinedArg {
		os.Exit(confined(os.Stdin, os.Stdout))
	}
	goleak.VerifyTestMain(m)
}

// defaultProfile is what pod/ocispec applies for RuntimeDefault, but for what that is stricter in.
func defaultProfile(t testing.TB, capabilities ...string) *specs.LinuxSeccomp {
	t.Helper()
	p, err := seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{
		Capabilities: &specs.LinuxCapabilities{Bounding: capabilities},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
