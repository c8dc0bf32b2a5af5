package withlc

import (
	"encoding/json"
	"testing"

	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/cmd/coracle-oci/cli"
)

// What users start from has to be what they start from with runc.
func TestExampleIsRuncs(t *testing.T) {
	for name, change := range map[string]struct{ ours, theirs func(*specs.Spec) }{
		"root": {func(*specs.Spec) {}, func(*specs.Spec) {}},
		"user": {cli.ForUser, specconv.ToRootless},
	} {
		ours, theirs := cli.Example(), specconv.Example()
		change.ours(ours)
		change.theirs(theirs)
		if got, want := text(t, ours), text(t, theirs); got != want {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
	}
}

func text(t *testing.T, s *specs.Spec) string {
	t.Helper()
	data, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
