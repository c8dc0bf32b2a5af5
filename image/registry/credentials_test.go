package registry

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// basic makes a fake want a user and password.
func basic(f *fake, want string) {
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if u, p, _ := r.BasicAuth(); u+":"+p == want {
			return false
		}
		challenge(w, `Basic realm="x"`)
		return true
	}
}

func dockerConfig(t *testing.T, format string, args ...any) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(file, fmt.Appendf(nil, format, args...), 0o600))
	return file
}

func TestDockerConfig(t *testing.T) {
	f := newFake(t)
	blob := f.has([]byte("blob"))
	basic(f, "user:secret")
	for name, c := range map[string]struct {
		config string
		auth   Auth
		want   string
	}{
		"auth":               {dockerConfig(t, `{"auths":{%q:{"auth":"dXNlcjpzZWNyZXQ="}}}`, f.host()), Auth{}, ""},
		"as a URL":           {dockerConfig(t, `{"auths":{"http://%s/v1/":{"auth":"dXNlcjpzZWNyZXQ="}}}`, f.host()), Auth{}, ""},
		"another registry's": {dockerConfig(t, `{"auths":{"r.example":{"auth":"dXNlcjpzZWNyZXQ="}}}`), Auth{}, "credential"},
		"the pull's own count": {
			dockerConfig(t, `{"auths":{%q:{"auth":"dXNlcjpzZWNyZXQ="}}}`, f.host()),
			Auth{Username: "user", Password: "wrong"},
			"check user name",
		},
		"not there":      {"/does/not/exist.json", Auth{}, "credential"},
		"no JSON":        {dockerConfig(t, `{`), Auth{}, "config.json"},
		"no such helper": {dockerConfig(t, `{"credHelpers":{%q:"does-not-exist"}}`, f.host()), Auth{}, "docker-credential-does-not-exist"},
	} {
		_, err := repository(t, client(t, Config{DockerConfig: c.config}, "", ""), f.host(), c.auth).Fetch(t.Context(), blob)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// helper puts a docker-credential-test on the PATH.
func helper(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "docker-credential-test"), []byte("#!/bin/sh\n"+script), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestCredentialHelper(t *testing.T) {
	f := newFake(t)
	blob := f.has([]byte("blob"))
	basic(f, "user:secret")
	helper(t, `read host; [ "$1 $host" = "get `+f.host()+`" ] && echo '{"Username":"user","Secret":"secret"}'`)
	config := dockerConfig(t, `{"credHelpers":{%q:"test"}}`, f.host())
	_, err := repository(t, client(t, Config{DockerConfig: config}, "", ""), f.host(), Auth{}).Fetch(t.Context(), blob)
	must(t, err)
}

// A helper whose user is <token> hands out an identity token.
func TestCredentialHelperWithIdentityToken(t *testing.T) {
	f := newFake(t)
	blob := f.has([]byte("blob"))
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/token":
			if r.FormValue("refresh_token") != "identity" {
				http.Error(w, "{}", http.StatusUnauthorized)
				return true
			}
			fmt.Fprint(w, `{"access_token":"good"}`)
			return true
		case r.Header.Get("Authorization") == "Bearer good":
			return false
		}
		challenge(w, `Bearer realm="%s/token",service="s",scope="repository:team/app:pull"`, f.URL)
		return true
	}
	helper(t, `echo '{"Username":"<token>","Secret":"identity"}'`)
	config := dockerConfig(t, `{"credsStore":"test"}`)
	_, err := repository(t, client(t, Config{DockerConfig: config}, "", ""), f.host(), Auth{}).Fetch(t.Context(), blob)
	must(t, err)
}

// A mirror is shown what the Docker config has for it, and nothing else.
func TestMirrorCredentials(t *testing.T) {
	origin, mirror := newFake(t), newFake(t)
	blob := mirror.has([]byte("blob"))
	basic(mirror, "mirror:secret")
	config := dockerConfig(t, `{"auths":{%q:{"username":"mirror","password":"secret"},%q:{"username":"origin","password":"secret"}}}`,
		mirror.host(), origin.host())
	c := client(t, Config{DockerConfig: config}, origin.host(), fmt.Sprintf("server = %q\n[host.%q]", origin.URL, mirror.URL))
	_, err := repository(t, c, origin.host(), Auth{Username: "pull", Password: "secret"}).Fetch(t.Context(), blob)
	must(t, err)
	if len(origin.asked()) != 0 {
		t.Error("the mirror was passed over")
	}
	for _, r := range mirror.asked() {
		if u, _, _ := r.BasicAuth(); u != "" && u != "mirror" {
			t.Errorf("the mirror was shown the credentials of %q", u)
		}
	}
}
