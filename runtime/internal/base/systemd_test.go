package base_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
)

func systemdSpec(path string, annotations map[string]string) *specs.Spec {
	return &specs.Spec{Linux: &specs.Linux{CgroupsPath: path}, Annotations: annotations}
}

func TestSystemdCgroupConfig(t *testing.T) {
	c, err := base.SystemdCgroupConfig("one", systemdSpec("", nil))
	if err != nil || !c.Systemd || c.Parent != "" || c.ScopePrefix != "coracle" || c.Name != "one" || c.Path != "" {
		t.Errorf("without a path: %+v, %v", c, err)
	}
	c, err = base.SystemdCgroupConfig("one", systemdSpec("machine.slice:libpod:abc", nil))
	if err != nil || c.Parent != "machine.slice" || c.ScopePrefix != "libpod" || c.Name != "abc" {
		t.Errorf("with a path: %+v, %v", c, err)
	}
	if _, err := base.SystemdCgroupConfig("one", &specs.Spec{}); err != nil {
		t.Errorf("without linux: %v", err)
	}
	for _, path := range []string{"/a/b", "a:b", "a:b:c:d", "a:b:", "../x:b:c", "a:b:c/d"} {
		if _, err := base.SystemdCgroupConfig("one", systemdSpec(path, nil)); !errors.Is(err, runtime.ErrInvalidSpec) ||
			!strings.Contains(err.Error(), "linux.cgroupsPath") {
			t.Errorf("path %q: error %v", path, err)
		}
	}
}

func TestSystemdProperties(t *testing.T) {
	const prefix = "org.systemd.property."
	for _, c := range []struct{ name, value, wantName, want string }{
		{"CollectMode", "'inactive-or-failed'", "CollectMode", `"inactive-or-failed"`},
		{"SendSIGHUP", "true", "SendSIGHUP", "true"},
		{"TimeoutStopSec", "uint64 7", "TimeoutStopUSec", "@t 7000000"},
		{"TimeoutStopSec", "1.5", "TimeoutStopUSec", "@t 1500000"},
		{"TimeoutStopSec", "byte 0x02", "TimeoutStopUSec", "@t 2000000"},
		{"TimeoutStopUSec", "uint64 7", "TimeoutStopUSec", "@t 7"},
		{"MaxSEC", "uint64 7", "MaxSEC", "@t 7"},
		{"Sec", "uint64 7", "Sec", "@t 7"},
		{"After", "['a.service', 'b.service']", "After", `["a.service", "b.service"]`},
	} {
		got, err := base.SystemdCgroupConfig("one", systemdSpec("", map[string]string{prefix + c.name: c.value, "other": "x"}))
		if err != nil || len(got.SystemdProps) != 1 {
			t.Errorf("%s %s: %v, %v", c.name, c.value, got, err)
			continue
		}
		if p := got.SystemdProps[0]; p.Name != c.wantName || p.Value.String() != c.want {
			t.Errorf("%s %s becomes %s %s", c.name, c.value, p.Name, p.Value)
		}
	}
	for _, c := range [][2]string{
		{"X", "true"},
		{"A-B", "true"},
		{"", "true"},
		{"Good", "never"},
		{"StopSec", "'soon'"},
		{"ListAsBoolean", "@b []"},
		{"DigitsOfOthers", "⒓"},
		{"StopSec", "-1"},
		{"StopSec", "-1.0"},
		{"StopSec", "uint64 18446744073709551615"},
		{"StopSec", "1e300"},
	} {
		_, err := base.SystemdCgroupConfig("one", systemdSpec("", map[string]string{prefix + c[0]: c[1]}))
		if !errors.Is(err, runtime.ErrInvalidSpec) || !strings.Contains(err.Error(), "annotations."+prefix+c[0]) {
			t.Errorf("%q: error %v", c, err)
		}
	}
}

// FuzzSystemdProperty gives annotations any content.
func FuzzSystemdProperty(f *testing.F) {
	for _, v := range []string{"true", "'x'", "uint64 3", "[1, 2]", "{'a': <1>}", "@as []", "1e308", "((("} {
		f.Add("TimeoutSec", v)
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		c, err := base.SystemdCgroupConfig("one", systemdSpec("", map[string]string{"org.systemd.property." + name: value}))
		if err == nil && len(c.SystemdProps) != 1 || err != nil && !errors.Is(err, runtime.ErrInvalidSpec) {
			t.Errorf("%+v, %v", c, err)
		}
	})
}
