package main

import (
	"strings"
	"testing"
)

// Regression: it knew no --version, and `coracle upgrade` refused all new programs if it was among
// them.
func TestVersion(t *testing.T) {
	var out strings.Builder
	cmd := command()
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--version"})
	if err := cmd.Execute(); err != nil || !strings.Contains(out.String(), "BuildKit v") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// Regression: image build alone did not know $CORACLE_ADDRESS, and took unix:///… for a file's
// name.
func TestAddress(t *testing.T) {
	for name, tc := range map[string]struct{ flag, variable, want string }{
		"of the state":    {want: "/s/coracle.sock"},
		"a path":          {flag: "/a.sock", want: "/a.sock"},
		"a URL":           {flag: "unix:///a.sock", want: "/a.sock"},
		"the environment": {variable: "unix:///b.sock", want: "/b.sock"},
		"both":            {flag: "/a.sock", variable: "/b.sock", want: "/a.sock"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CORACLE_ADDRESS", tc.variable)
			s := settings{names: []string{"app"}, context: t.TempDir(), progress: "auto", output: "table", state: "/s", address: tc.flag}
			if err := s.check(); err != nil || s.address != tc.want {
				t.Errorf("%q, %v; want %q", s.address, err, tc.want)
			}
		})
	}
}
