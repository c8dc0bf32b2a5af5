package config

import (
	"slices"
	"testing"
)

func TestMerge(t *testing.T) {
	old := Default()
	for _, tc := range []struct {
		name           string
		change         func(*Config)
		changed, later []string
	}{
		{"nothing", func(*Config) {}, nil, nil},
		{"what may", func(c *Config) {
			c.Log.Level, c.Network.CNIConfDir = "debug", "/cni"
			c.Image.Registry = map[string]Registry{"a": {PlainHTTP: true}}
			c.Runtime.Handler = map[string]Handler{"crun": {Runtime: "oci:/usr/bin/crun"}}
		}, []string{"log.level", "network.cni_conf_dir", "image.registry", "runtime.handler"}, nil},
		{"what may not", func(c *Config) {
			c.Root, c.Log.Format, c.Network.MTU, c.Shim.Supervise = "/r", "json", 1400, false
		}, nil, []string{"root", "log.format", "shim.supervise", "network.mtu"}},
		{"both", func(c *Config) {
			c.State, c.Image.CertsDirs = "/s", []string{"/certs"}
		}, []string{"image.certs_dirs"}, []string{"state"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			next := Default()
			tc.change(&next)
			merged, changed, later := old.Merge(next)
			if !slices.Equal(changed, tc.changed) || !slices.Equal(later, tc.later) {
				t.Errorf("changed %q, later %q", changed, later)
			}
			// A second time there is nothing left but what needs a restart.
			if _, again, _ := merged.Merge(next); again != nil {
				t.Errorf("not merged: %q", again)
			}
			if merged.Root != "/var/lib/coracle" || merged.Network.MTU != 0 {
				t.Errorf("merged what needs a restart: %+v", merged)
			}
		})
	}
}
