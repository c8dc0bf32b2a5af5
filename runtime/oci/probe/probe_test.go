package probe_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/runtime/oci/probe"
)

func TestFeatures(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		command, err string
		want         probe.Features
	}{
		"Debian's runc": {"/usr/sbin/runc", "", probe.Features{RecursiveReadonly: true}},
		"no such command": {
			"/usr/bin/crun", "ask /usr/bin/crun for its features: exit status 1", probe.Features{},
		},
		"all": {
			script("all", `echo '{"mountOptions":["ro","rro"],"linux":{"mountExtensions":{"idmap":{"enabled":true}}}}'`), "",
			probe.Features{RecursiveReadonly: true, IDMap: true},
		},
		"none":     {script("none", "echo '{}'"), "", probe.Features{}},
		"not JSON": {script("text", "echo hello"), "invalid character", probe.Features{}},
		"missing":  {"/nowhere/runc", "no such file", probe.Features{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := probe.Ask(t.Context(), c.command)
			if got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error is %v, want %q", err, c.err)
			}
		})
	}
}
