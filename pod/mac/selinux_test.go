package mac

import (
	"slices"
	"testing"

	"github.com/coracle-project/coracle/pod/podconfig"
)

func TestSELinuxOptions(t *testing.T) {
	for name, c := range map[string]struct {
		label    podconfig.SELinux
		disabled bool
		want     []string
	}{
		"nothing":  {podconfig.SELinux{}, false, nil},
		"disabled": {podconfig.SELinux{}, true, []string{"disable"}},
		"level":    {podconfig.SELinux{Level: "s0:c1,c2"}, false, []string{"level:s0:c1,c2"}},
		"all": {
			podconfig.SELinux{User: "system_u", Role: "system_r", Type: "container_t", Level: "s0:c3"},
			false,
			[]string{"user:system_u", "role:system_r", "type:container_t", "level:s0:c3"},
		},
	} {
		if got := labelOptions(c.label, c.disabled); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
