package lc

import "testing"

func TestIsInUnified(t *testing.T) {
	const v2, hybrid = "/sys/fs/cgroup/a/b", "/sys/fs/cgroup/unified/a/b"
	for text, want := range map[string]bool{
		"0::/a/b\n":                              true,
		"0::/a/b (deleted)\n":                    true, // its cgroup has been removed, and it is not reaped
		"2:memory:/\n1:cpu,cpuacct:/\n0::/a/b\n": true,
		"2:memory:/a/b\n0::/\n":                  false, // of a controller of version 1 alone
		"0::/a/b/c\n":                            false,
		"0::/a\n":                                false,
		"2:memory:/a/b\n":                        false,
		"":                                       false,
	} {
		for _, dir := range []string{v2, hybrid} {
			if got := isIn([]byte(text), inUnified(dir)); got != want {
				t.Errorf("%q is in %s: %t", text, dir, got)
			}
		}
	}
	for _, none := range []string{"", "/sys/fs/cgroup/", "/sys/fs/cgroup/unified/", "/elsewhere/a"} {
		if got := inUnified(none); got != "" {
			t.Errorf("%q is %q of the unified hierarchy", none, got)
		}
	}
}
