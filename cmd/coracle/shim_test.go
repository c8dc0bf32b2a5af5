package main

import (
	"path/filepath"
	"testing"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
)

// Regression: shims were restarted before the format of the answer was found to be unknown.
func TestShimRestartInAnUnknownFormat(t *testing.T) {
	t.Setenv(daemon.AddressVariable, filepath.Join(t.TempDir(), "none"))
	cmd := shimCommand(&place{})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs([]string{"restart", "-o", "xml"})
	if err := cmd.ExecuteContext(t.Context()); err == nil || err.Error() != `invalid argument "xml" for "-o, --output" flag: it is table, json or yaml` {
		t.Error(err)
	}
}
