package version

import (
	"runtime"
	"strings"
	"testing"
)

func TestString(t *testing.T) {
	old := [3]string{Version, Commit, Date}
	t.Cleanup(func() { Version, Commit, Date = old[0], old[1], old[2] })
	for _, tc := range []struct {
		name                  string
		version, commit, date string
		prefix                string
	}{
		{"linked", "v1.2.3", "abc", "2026-01-02T03:04:05Z", "v1.2.3 abc 2026-01-02T03:04:05Z "},
		{"no commit", "v1.2.3", "", "", "v1.2.3 "},
		{"nothing", "", "", "", "v"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			Version, Commit, Date = tc.version, tc.commit, tc.date
			got := String()
			if !strings.HasPrefix(got, tc.prefix) {
				t.Errorf("String() = %q, want prefix %q", got, tc.prefix)
			}
			if !strings.HasSuffix(got, runtime.GOOS+"/"+runtime.GOARCH) {
				t.Errorf("String() = %q, no platform at its end", got)
			}
			if strings.ContainsAny(got, "\n") {
				t.Errorf("String() = %q, more than a line", got)
			}
		})
	}
}

// The kubelet shows "Unknown" for what is no semantic version.
func TestNumberIsSemantic(t *testing.T) {
	old := Version
	t.Cleanup(func() { Version = old })
	for set, want := range map[string]string{
		"v1.2.3": "v1.2.3", "1.2.3": "1.2.3", "v0.4.0-12-gabcdef0-dirty": "v0.4.0-12-gabcdef0-dirty",
		"6f61b9d": "v0.0.0-git-6f61b9d", "0123456-dirty": "v0.0.0-git-0123456-dirty", "v1": "v0.0.0-git-v1",
	} {
		Version = set
		if got := Number(); got != want {
			t.Errorf("%s becomes %s, want %s", set, got, want)
		}
	}
}
