package image

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

func TestShortNameIsRefusedWithAHint(t *testing.T) {
	_, err := openStore(t, nil).Pull(t.Context(), "team/app:1", PullOptions{})
	if !errors.Is(err, ErrInvalidReference) || !strings.Contains(err.Error(), "docker.io/team/app:1") ||
		!strings.Contains(err.Error(), "short_name_registry") {
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
