package driver

import (
	"slices"
	"strings"
	"testing"
)

// What is passed to mount for SELinux, which this kernel may not have on. In a string of options a
// label with commas is quoted; fsconfig(2) takes it as it is.
func TestOverlayLabel(t *testing.T) {
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	o := overlay{upper: "/u", work: "/w", label: label}
	if want := [2]string{"context", label}; !slices.Contains(o.parameters(), want) {
		t.Errorf("parameters %q", o.parameters())
	}
	if got := o.options([]string{"/l"}); !strings.Contains(got, `,context="`+label+`"`) {
		t.Errorf("options %s", got)
	}
	o.label = ""
	if got := o.options([]string{"/l"}); strings.Contains(got, "context") {
		t.Errorf("options without a label: %s", got)
	}
}
