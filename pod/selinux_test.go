package pod

import (
	"slices"
	"testing"
)

func TestSELinuxOptions(t *testing.T) {
	for name, c := range map[string]struct {
		label      SELinux
		privileged bool
		want       []string
	}{
		"nothing":              {SELinux{}, false, nil},
		"privileged":           {SELinux{}, true, []string{"disable"}},
		"privileged, labelled": {SELinux{Type: "spc_t"}, true, []string{"type:spc_t"}},
		"level":                {SELinux{Level: "s0:c1,c2"}, false, []string{"level:s0:c1,c2"}},
		"all": {
			SELinux{User: "system_u", Role: "system_r", Type: "container_t", Level: "s0:c3"},
			false,
			[]string{"user:system_u", "role:system_r", "type:container_t", "level:s0:c3"},
		},
	} {
		if got := c.label.options(c.privileged); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
