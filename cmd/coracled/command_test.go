package main

import (
	"os"
	"path/filepath"
	"slices"
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
			[]string{"--root=r", "--state", "s", "--address", "unix:///a.sock", "--log-level", "warn", "--only-listed-loopback", "--log-file", "l"},
			[]string{
				"--root", filepath.Join(dir, "r"), "--state", filepath.Join(dir, "s"), "--address", "unix:///a.sock", "--log-level", "warn",
				"--log-file", filepath.Join(dir, "l"), "--only-listed-loopback",
			},
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
			if want := name == "all"; c.Image.OnlyListedLoopback != want {
				t.Errorf("image.only_listed_loopback is %t", c.Image.OnlyListedLoopback)
			}
			if diff := cmp.Diff(tt.want, f.again(cmd, c)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// coracle up says where names without a registry are; a configuration file that says so, too, wins,
// and a coracled that nothing was said to refuses such names.
func TestShortNameRegistry(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, []byte("[image]\nshort_name_registry = \"registry.example\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"nothing said":     {nil, ""},
		"the flag":         {[]string{"--short-name-registry", "docker.io"}, "docker.io"},
		"file and flag":    {[]string{"--config", file, "--short-name-registry", "docker.io"}, "registry.example"},
		"the file":         {[]string{"--config", file}, "registry.example"},
		"the flag, absurd": {[]string{"--short-name-registry", "no host"}, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			var f flags
			cmd := &cobra.Command{}
			f.define(cmd)
			if err := cmd.ParseFlags(tt.args); err != nil {
				t.Fatal(err)
			}
			c, err := f.load(cmd)
			if got := c.Image.ShortNameRegistry; err == nil && got != tt.want || err != nil && tt.want != "error" {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
			if err == nil && len(tt.args) == 2 && !slices.Equal(f.again(cmd, c), tt.args) {
				t.Errorf("the next start has %q, want %q", f.again(cmd, c), tt.args)
			}
		})
	}
}
