package image

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

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
		n, err := shortNames(c.registry).parse(c.ref)
		if c.want == "" && !errors.Is(err, ErrInvalidReference) || c.want != "" && (err != nil || n.String() != c.want) {
			t.Errorf("%q with %q: %q, %v; want %q", c.ref, c.registry, n, err, c.want)
		}
	}
}

func TestShortNameIsRefusedWithAHint(t *testing.T) {
	_, err := openStore(t, nil).Pull(t.Context(), "team/app:1", PullOptions{})
	if !errors.Is(err, ErrInvalidReference) || !strings.Contains(err.Error(), "docker.io/team/app:1") || !strings.Contains(err.Error(), "short_name_registry") {
		t.Error(err)
	}
}

// What was pulled by a short name is found by it again, or the kubelet would pull forever.
func TestShortNameIsFoundAgain(t *testing.T) {
	r := newFake(t)
	s := openStore(t, func(c *Config) { c.ShortNameRegistry = r.host() + "/hub" })
	r.image("hub/app:1", threeLayers(), nil)
	img, err := s.Pull(t.Context(), "app:1", PullOptions{})
	must(t, err)
	if got, err := s.Get("app:1"); err != nil || got.ID != img.ID || img.RepoTags[0] != r.ref("hub/app:1") {
		t.Errorf("%v, %v; tags %q", got.ID, err, img.RepoTags)
	}
	must(t, s.Remove(t.Context(), "app:1"))
	if got := s.left(t); got != nothingLeft {
		t.Error(got)
	}
}

// The kubelet chooses credentials by the name as it reads it, which is Docker Hub's.
func TestShortNameShowsNoCredentialsToOthers(t *testing.T) {
	r := newFake(t)
	s := openStore(t, func(c *Config) { c.ShortNameRegistry = r.host() })
	r.image("team/app:1", threeLayers(), nil)
	r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if req.Header.Get("Authorization") != "" {
			t.Error("credentials for Docker Hub were shown to another registry")
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
		return true
	}
	if _, err := s.Pull(t.Context(), "team/app:1", PullOptions{Auth: Auth{Username: "u", Password: "p"}}); !errors.Is(err, ErrUnauthorized) {
		t.Error(err)
	}
}
