package doctor

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/cmd/coracled/config"
)

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func TestReadCNI(t *testing.T) {
	for _, tc := range []struct {
		name, file, text string
		err              string
		missing          []string
	}{
		{
			name: "list", file: "10-net.conflist",
			text:    `{"name":"n","plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]}`,
			missing: []string{"host-local", "portmap"},
		},
		{name: "single", file: "10-net.conf", text: `{"name":"n","type":"bridge"}`},
		{name: "no JSON", file: "10-net.conf", text: `name: n`, err: "10-net.conf: invalid character"},
		{name: "no plugins", file: "10-net.conflist", text: `{"name":"n"}`, err: `no "plugins"`},
		{name: "no type", file: "10-net.conflist", text: `{"name":"n","plugins":[{"type":"bridge"},{}]}`, err: `plugin 2 has no "type"`},
		{name: "type of another type", file: "10-net.conf", text: `{"type":7}`, err: "10-net.conf: json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			bin := filepath.Join(dir, "bin")
			write(t, filepath.Join(bin, "bridge"), "#!/bin/sh\n", 0o755)
			write(t, filepath.Join(bin, "portmap"), "not executable", 0o644)
			write(t, filepath.Join(dir, "net.d", "00-readme.txt"), "no configuration", 0o644)
			write(t, filepath.Join(dir, "net.d", "20-later.conf"), "not looked at", 0o644)
			write(t, filepath.Join(dir, "net.d", tc.file), tc.text, 0o644)
			c := readCNI(filepath.Join(dir, "net.d"), []string{bin})
			if (c.Err == "") != (tc.err == "") || !strings.Contains(c.Err, tc.err) || !slices.Equal(c.Missing, tc.missing) ||
				filepath.Base(c.File) != tc.file {
				t.Errorf("%+v", c)
			}
		})
	}
	if c := readCNI(filepath.Join(t.TempDir(), "none"), nil); c.File != "" || c.Err != "" {
		t.Errorf("no directory: %+v", c)
	}
}

func TestRegistriesOf(t *testing.T) {
	certs := t.TempDir()
	write(t, filepath.Join(certs, "docker.io", "hosts.toml"), "", 0o600)
	all := registriesOf(&config.Image{
		ShortNameRegistry: "docker.io/library",
		CertsDirs:         []string{certs},
		Registry: map[string]config.Registry{
			"plain.example:5000": {PlainHTTP: true},
			"a.example":          {Mirrors: []string{"http://mirror.example", "a.example"}},
		},
	}, []string{"127.0.0.1:5000", "a.example", ""})
	var got []string
	for _, a := range all {
		got = append(got, a.URL+" "+filepath.Base(a.Hosts))
	}
	want := []string{
		"http://127.0.0.1:5000/v2/ .", "https://a.example/v2/ .", "http://mirror.example/v2/ .",
		"http://plain.example:5000/v2/ .", "https://registry-1.docker.io/v2/ hosts.toml",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Without a question to the machine's own name servers.
func TestANameThatIsNotThere(t *testing.T) {
	err := &url.Error{Op: "Get", Err: &net.OpError{
		Op:  "dial",
		Err: &net.DNSError{Err: "no such host", Name: "name.invalid", IsNotFound: true},
	}}
	if said, kind := reason(err); kind != NoName {
		t.Errorf("%q, %q", said, kind)
	}
}

func TestAskRegistries(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	plain, secure := httptest.NewServer(answer), httptest.NewTLSServer(answer)
	defer plain.Close()
	defer secure.Close()
	plainHost, secureHost := strings.TrimPrefix(plain.URL, "http://"), strings.TrimPrefix(secure.URL, "https://")
	for _, tc := range []struct {
		name   string
		a      asked
		status int
		kind   Unreachable
	}{
		{"plain", asked{Registry: Registry{URL: plain.URL + "/v2/"}}, 401, ""},
		{"plain, asked with TLS", asked{Registry: Registry{URL: "https://" + plainHost + "/v2/"}}, 0, NotTLS},
		{"certificate", asked{Registry: Registry{URL: secure.URL + "/v2/"}}, 0, NoTrust},
		{
			"certificate, not looked at",
			asked{Registry{URL: "https://" + secureHost + "/v2/"}, config.Registry{InsecureSkipVerify: true}},
			401,
			"",
		},
		{"authority that is not there", asked{Registry{URL: secure.URL + "/v2/"}, config.Registry{CAFile: "/no/such/file"}}, 0, OtherReason},
		{"nobody", asked{Registry: Registry{URL: "http://127.0.0.1:1/v2/"}}, 0, OtherReason},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := askRegistries(t.Context(), []asked{tc.a})[0]
			if r.Status != tc.status || r.Kind != tc.kind || (r.Err == "") != (tc.kind == "") {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestReadDisk(t *testing.T) {
	d := readDisk("root", filepath.Join(t.TempDir(), "to", "be", "made"))
	if d.Err != "" || d.Total == 0 || d.Type == "" {
		t.Errorf("%+v", d)
	}
}

func TestReadHost(t *testing.T) {
	k := readKernel()
	if k.Release == "" || !slices.Contains(k.Namespaces, "mnt") {
		t.Errorf("%+v", k)
	}
	if c := readCgroups("auto"); c.Version == 0 || !slices.Contains(c.Controllers, "memory") {
		t.Errorf("%+v", c)
	}
	if number("/no/such/setting") < 1<<30 {
		t.Error("a setting that is not there limits something")
	}
}
