package main

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// The keeper starts a killed daemon again with the arguments that it had, from
// another working directory.
func TestArgumentsOfTheNextStart(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, tt := range map[string]struct{ args, want []string }{
		"none": {nil, []string{}},
		"all": {
			[]string{"--root=r", "--state", "s", "--address", "unix:///a.sock", "--log-level", "warn", "--log-file", "l"},
			[]string{"--root", filepath.Join(dir, "r"), "--state", filepath.Join(dir, "s"), "--address", "unix:///a.sock", "--log-level", "warn", "--log-file", filepath.Join(dir, "l")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var f flags
			cmd := &cobra.Command{}
			f.define(cmd)
			if err := cmd.ParseFlags(tt.args); err != nil {
				t.Fatal(err)
			}
			c, err := f.load(cmd)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, f.again(cmd, c)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
