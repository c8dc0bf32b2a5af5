package registry

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

func TestMirrorsOfAHostsFile(t *testing.T) {
	origin, mirror, broken := newFake(t), newFake(t), newFake(t)
	blob := origin.has([]byte("blob"))
	mirror.has([]byte("blob"))
	tag := []byte(`{}`)
	origin.blobs["1"] = tag
	mirror.blobs["1"] = []byte(`{"forged":true}`)
	c := client(t, Config{}, origin.host(), fmt.Sprintf(`
		server = %q
		[host.%q]
		[host.%q]
		  capabilities = ["pull"]
		  override_path = true
		  [host.%q.header]
		    x-team = "blue"`, origin.URL, broken.URL, mirror.URL+"/cache/hub", mirror.URL+"/cache/hub"))
	r := repository(t, c, origin.host(), Auth{Username: "u", Password: "p"})

	_, data, err := r.Resolve(t.Context(), "1")
	must(t, err)
	if string(data) != string(tag) || len(mirror.asked()) != 0 {
		t.Errorf("%s: a mirror that may only be pulled from was asked what a tag is", data)
	}
	_, err = r.Fetch(t.Context(), blob)
	must(t, err)
	got := mirror.asked()[0]
	if got.URL.Path != "/cache/hub/team/app/blobs/"+blob.Digest.String() || got.URL.Query().Get("ns") != origin.host() ||
		got.Header.Get("X-Team") != "blue" {
		t.Errorf("%s %v", got.URL, got.Header)
	}
	if n := len(origin.asked()); n != 1 {
		t.Errorf("origin asked %d times", n)
	}
	if origin.asked()[0].URL.RawQuery != "" || origin.asked()[0].Header.Get("X-Team") != "" {
		t.Error("the origin was told what is for mirrors")
	}
}

func TestNoHostMayResolve(t *testing.T) {
	c := client(t, Config{}, "r.example", `capabilities = ["pull"]`)
	_, _, err := repository(t, c, "r.example", Auth{}).Resolve(t.Context(), "1")
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "no host of registry r.example may resolve") {
		t.Error(err)
	}
}

func TestBrokenHostsFileIsTold(t *testing.T) {
	c := client(t, Config{}, "r.example", `mirror = "x"`)
	if _, err := c.Repository("r.example", "app", Auth{}); err == nil ||
		!strings.Contains(err.Error(), "r.example/hosts.toml: line 1: unknown key mirror") {
		t.Error(err)
	}
	c = client(t, Config{}, "r.example", `ca = "none.pem"`)
	if _, err := c.Repository("r.example", "app", Auth{}); err == nil || !strings.Contains(err.Error(), "none.pem: no such file") {
		t.Error(err)
	}
}

// Neither credentials nor headers follow a redirect to another host, and so to where a
// hostile or broken registry sends us.
func TestSecretsFollowNoRedirect(t *testing.T) {
	for name, a := range map[string]Auth{
		"password":       {Username: "u", Password: "p"},
		"registry token": {RegistryToken: "t"},
	} {
		t.Run(name, func(t *testing.T) {
			origin, elsewhere := newFake(t), newFake(t)
			blob := elsewhere.has([]byte("blob"))
			origin.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case r.Header.Get("Authorization") == "" && a.RegistryToken != "":
					challenge(w, `Bearer realm="%s/token"`, origin.URL)
				case r.Header.Get("Authorization") == "":
					challenge(w, `Basic realm="x"`)
				default:
					http.Redirect(w, r, strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1)+r.URL.Path, http.StatusTemporaryRedirect)
				}
				return true
			}
			c := client(t, Config{}, origin.host(), fmt.Sprintf("server = %q\nheader = {x-key = 'secret'}", origin.URL))
			_, err := repository(t, c, origin.host(), a).Fetch(t.Context(), blob)
			must(t, err)
			for _, r := range elsewhere.asked() {
				if r.Header.Get("Authorization") != "" || r.Header.Get("X-Key") != "" {
					t.Errorf("sent elsewhere: %v", r.Header)
				}
			}
			for _, r := range origin.asked() {
				if r.Header.Get("X-Key") != "secret" {
					t.Errorf("%s without the header: %v", r.URL, r.Header)
				}
			}
		})
	}
}

// A foreign host that challenges us after a redirect gets no credentials either.
func TestForeignChallengeGetsNothing(t *testing.T) {
	origin, elsewhere := newFake(t), newFake(t)
	blob := elsewhere.has([]byte("blob"))
	elsewhere.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "" {
			t.Errorf("sent elsewhere: %v", r.Header)
		}
		challenge(w, `Basic realm="give"`)
		return true
	}
	origin.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	}
	c := client(t, Config{}, origin.host(), fmt.Sprintf("server = %q", origin.URL))
	if _, err := repository(t, c, origin.host(), Auth{Username: "u", Password: "p"}).Fetch(t.Context(), blob); !errors.Is(err,
		ErrUnauthorized) {
		t.Error(err)
	}
}

func TestHTTP2AndKeepAlive(t *testing.T) {
	f := newFake(t)
	f2 := httptest.NewUnstartedServer(f.Config.Handler)
	f2.EnableHTTP2 = true
	f2.StartTLS()
	t.Cleanup(f2.Close)
	blob := f.has([]byte("blob"))
	host := hostPort(t, f2.URL)
	r := repository(t, client(t, Config{}, host, "skip_verify = true"), host, Auth{})
	for range 3 {
		_, err := r.Fetch(t.Context(), blob)
		must(t, err)
	}
	connections := map[string]bool{}
	for _, req := range f.asked() {
		connections[req.RemoteAddr] = true
		if req.ProtoMajor != 2 {
			t.Errorf("%s", req.Proto)
		}
	}
	if len(connections) != 1 {
		t.Errorf("%d connections", len(connections))
	}
}

// A mirror that fails is not tried again and again while others wait behind it.
func TestFailingMirrorHoldsNothingUp(t *testing.T) {
	origin, mirror := newFake(t), newFake(t)
	blob := origin.has([]byte("blob"))
	origin.blobs["1"] = []byte(`{}`)
	mirror.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	c := client(t, Config{}, origin.host(), fmt.Sprintf("server = %q\n[host.%q]", origin.URL, mirror.URL))
	r := repository(t, c, origin.host(), Auth{})
	_, _, err := r.Resolve(t.Context(), "1")
	must(t, err)
	must(t, r.Blob(t.Context(), blob, &memory{}, ignore))
	if n := len(mirror.asked()); n != 2 {
		t.Errorf("the mirror was asked %d times, want once for each", n)
	}
}

// One that cannot be reached at all is forgotten for the operation.
func TestUnreachableMirrorIsPassedOver(t *testing.T) {
	origin, gone := newFake(t), "http://"+testkit.RefusingAddr(t)
	origin.blobs["1"] = []byte(`{}`)
	c := client(t, Config{}, origin.host(), fmt.Sprintf("server = %q\n[host.%q]", origin.URL, gone))
	r := repository(t, c, origin.host(), Auth{})
	_, _, err := r.Resolve(t.Context(), "1")
	must(t, err)
	if all, err := r.able(Pull); err != nil || len(all) != 1 || all[0].Host.Host != origin.host() {
		t.Errorf("%v, %v", all, err)
	}
	origin.Close()
	_, _, err = r.Resolve(t.Context(), "1")
	if !errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	if all, err := r.able(Pull); err != nil || len(all) != 2 {
		t.Errorf("when all are down all are asked: %v, %v", all, err)
	}
}

// What a mirror calls a manifest may be the page of some portal.
func TestMirrorThatServesPages(t *testing.T) {
	origin, portal := newFake(t), newFake(t)
	origin.blobs["1"] = []byte(`{}`)
	portal.blobs["1"] = []byte("<html>log in</html>")
	c := client(t, Config{}, origin.host(), fmt.Sprintf("server = %q\n[host.%q]", origin.URL, portal.URL))
	_, data, err := repository(t, c, origin.host(), Auth{}).Resolve(t.Context(), "1")
	if err != nil || string(data) != "{}" {
		t.Errorf("%q, %v", data, err)
	}
}
