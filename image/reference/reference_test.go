package reference

import (
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestNames(t *testing.T) {
	d := string(digest.FromString("x"))
	for ref, want := range map[string]string{
		"busybox":               "docker.io/library/busybox:latest",
		"busybox:1":             "docker.io/library/busybox:1",
		"me/busybox":            "docker.io/me/busybox:latest",
		"localhost/busybox":     "localhost/busybox:latest",
		"127.0.0.1:5000/b:2":    "127.0.0.1:5000/b:2",
		"[::1]:5000/b":          "[::1]:5000/b:latest",
		"r.example/b@" + d:      "r.example/b@" + d,
		"r.example/b:tag@" + d:  "r.example/b@" + d,
		"index.docker.io/a":     "docker.io/library/a:latest",
		"registry.k8s.io/p:3.9": "registry.k8s.io/p:3.9",
	} {
		if n, err := Parse(ref); err != nil || n.String() != want {
			t.Errorf("Parse(%q) = %s, %v; want %s", ref, n, err, want)
		}
	}
	for _, ref := range []string{"", ":", "UPPER", "a b", "-x", d, "a:" + strings.Repeat("t", 129), "a@sha256:00", "https://x/y"} {
		if _, err := Parse(ref); !errors.Is(err, ErrInvalid) {
			t.Errorf("Parse(%q): %v, want ErrInvalid", ref, err)
		}
	}
}

func TestShortNames(t *testing.T) {
	for _, c := range []struct{ registry, ref, want string }{
		{"", "busybox", ""},
		{"", "team/app:1", ""},
		{"", "docker.io/busybox", "docker.io/library/busybox:latest"},
		{"", "localhost/app", "localhost/app:latest"},
		{"", "registry.example/app:1", "registry.example/app:1"},
		{"docker.io", "busybox", "docker.io/library/busybox:latest"},
		{"docker.io", "team/app:1", "docker.io/team/app:1"},
		{"registry.example/hub", "busybox:1", "registry.example/hub/busybox:1"},
		{"registry.example", "localhost:5000/app", "localhost:5000/app:latest"},
		{"registry.example", "Busybox", ""},
		{"registry.example", "../x", ""},
	} {
		n, err := ShortNames(c.registry).Parse(c.ref)
		if c.want == "" && !errors.Is(err, ErrInvalid) || c.want != "" && (err != nil || n.String() != c.want) {
			t.Errorf("%q with %q: %q, %v; want %q", c.ref, c.registry, n, err, c.want)
		}
	}
}

func FuzzReference(f *testing.F) {
	for _, s := range []string{"busybox", "a/b:c", "localhost:5000/x@sha256:00", "sha256:abcdef", "cafe", "A", "", ":", "@"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := Parse(s)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("error %v is not ErrInvalid", err)
			}
			return
		}
		again, err := Parse(n.String())
		if err != nil || again != n {
			t.Errorf("%q becomes %v, and that %v, %v", s, n, again, err)
		}
	})
}
