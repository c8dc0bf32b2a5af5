package registry

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestHostsFile(t *testing.T) {
	for name, c := range map[string]struct {
		registry, text string
		want           []Host
	}{
		"empty":      {"r.example", "", []Host{{Scheme: "https", Host: "r.example", Path: "/v2", Can: everything}}},
		"Docker Hub": {"docker.io", "", []Host{{Scheme: "https", Host: "registry-1.docker.io", Path: "/v2", Can: everything}}},
		"loopback":   {"127.0.0.1:5000", "", []Host{{Scheme: "http", Host: "127.0.0.1:5000", Path: "/v2", Can: everything, guess: true}}},
		"loopback, TLS": {
			"127.0.0.1:5000", "skip_verify = true",
			[]Host{{Scheme: "https", Host: "127.0.0.1:5000", Path: "/v2", Can: everything, SkipVerify: true}},
		},
		"server": {
			"r.example", `server = "http://s.example:80/"`,
			[]Host{{Scheme: "http", Host: "s.example:80", Path: "/v2", Can: everything}},
		},
		"server by name": {"r.example", `server = "s.example"`, []Host{{Scheme: "https", Host: "s.example", Path: "/v2", Can: everything}}},
		"everything": {"docker.io", `
			server = "https://registry-1.docker.io"
			capabilities = ["Pull", "resolve"]
			ca = "/ca.pem"
			[host."https://z.example"]
			  capabilities = ["pull"]
			  ca = ["z.pem", "/y.pem"]
			  client = [["c.pem", "c.key"], ["/d.pem", "d.key"]]
			  dial_timeout = "3s"
			  [host."https://z.example".header]
			    x-team = "a"
			    x-many = ["b", "c"]
			[host."https://a.example/v2/hub"]
			  override_path = true
			  client = "both.pem"
			[host."http://m.example:5000/v2"]
			  client = ["one.pem", "two.pem"]
			[host."http://e.example"]
			  client = [["both.pem", ""], ["/c.pem", "c.key"]]
			[host."https://registry-1.docker.io/hub"]
			`, []Host{
			{
				Scheme: "https", Host: "z.example", Path: "/v2", Can: Pull, CAs: []string{"/dir/z.pem", "/y.pem"}, mirror: true,
				DialTimeout: 3 * time.Second,
				Pairs:       []KeyPair{{"/dir/c.pem", "/dir/c.key"}, {"/d.pem", "/dir/d.key"}},
				Header:      http.Header{"X-Team": {"a"}, "X-Many": {"b", "c"}},
			},
			{
				Scheme: "https", Host: "a.example", Path: "/v2/hub", Can: everything, mirror: true,
				Pairs: []KeyPair{{"/dir/both.pem", "/dir/both.pem"}},
			},
			{
				Scheme: "http", Host: "m.example:5000", Path: "/v2", Can: everything, mirror: true,
				Pairs: []KeyPair{{"/dir/one.pem", "/dir/one.pem"}, {"/dir/two.pem", "/dir/two.pem"}},
			},
			{
				Scheme: "http", Host: "e.example", Path: "/v2", Can: everything, mirror: true,
				Pairs: []KeyPair{{"/dir/both.pem", "/dir/both.pem"}, {"/c.pem", "/dir/c.key"}},
			},
			{Scheme: "https", Host: "registry-1.docker.io", Path: "/hub/v2", Can: everything},
			{Scheme: "https", Host: "registry-1.docker.io", Path: "/v2", Can: Pull | Resolve, CAs: []string{"/ca.pem"}},
		}},
		"order of inline hosts": {"r.example", "host.\"http://b\" = {}\nhost.\"http://a\" = {skip_verify = true}", []Host{
			{Scheme: "http", Host: "b", Path: "/v2", Can: everything, mirror: true},
			{Scheme: "http", Host: "a", Path: "/v2", Can: everything, mirror: true, SkipVerify: true},
			{Scheme: "https", Host: "r.example", Path: "/v2", Can: everything},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseHosts([]byte(c.text), "/dir", c.registry)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(Host{}), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHostsFileRejections(t *testing.T) {
	for text, want := range map[string]string{
		"server = 5":                              "line 1: server: has type integer, not string",
		"\nsevrer = 'x'":                          "line 2: unknown key sevrer",
		"[host.'https://m']\nskip = true":         `line 2: unknown key host."https://m".skip`,
		"[host.'ftp://m']":                        `host."ftp://m": "ftp://m": scheme "ftp" is neither http nor https`,
		"[host.'https://u:p@m']":                  "is not http(s)://host",
		"[host.'https://m?x=1']":                  "is not http(s)://host",
		"[host.'https://']":                       "is not http(s)://host",
		"[host.'%']":                              "is not a URL",
		"capabilities = ['fly']":                  `capabilities: "fly" is none of pull, resolve, push, referrers`,
		"ca = 5":                                  "ca: 5 is neither a string nor a list of strings",
		"ca = ['a', 5]":                           "ca: 5 is not a string",
		"client = [['a', 'b', 'c']]":              "is neither one file nor a certificate and its key",
		"client = [[]]":                           "is neither one file nor a certificate and its key",
		"client = ''":                             "is neither one file nor a certificate and its key",
		"client = [['', 'b']]":                    "is neither one file nor a certificate and its key",
		"client = true":                           "client: true is neither",
		"header = {a = 5}":                        "header: a: 5 is neither",
		"header = {'a b' = 'c'}":                  `"a b" is not the name of a header`,
		"header = {a = \"b\\r\\nX-Injected: c\"}": "characters that a header cannot have",
		"dial_timeout = 'soon'":                   "dial_timeout: ",
		"dial_timeout = '-1s'":                    "dial_timeout: ",
		"[host.'https://m']\ndial_timeout = '1'":  `host."https://m": dial_timeout: `,
		"override_path = 'yes'":                   "line 1: override_path: has type string, not boolean",
		"server = 'a'\nserver = 'b'":              "server",
		"[host.'https://m'":                       "line 1: ",
	} {
		if _, err := parseHosts([]byte(text), "/dir", "r.example"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", text, err, want)
		}
	}
}

func TestCertsDirs(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(first+"/r.example_5000_/hosts.toml", "server = 'https://port'")
	write(first+"/r.example:5000/hosts.toml", "server = 'https://colon'")
	write(first+"/plain.example/notes.txt", "")
	write(second+"/r.example/hosts.toml", "server = 'https://second'")
	write(second+"/bad.example/hosts.toml", "x = 1")
	write(second+"/large.example/hosts.toml", strings.Repeat("#", 2<<20))
	write(second+"/file.example", "")
	write(second+"/certs.example/a.crt", "")
	write(second+"/certs.example/b.cert", "")
	write(second+"/certs.example/b.key", "")
	write(second+"/certs.example/c.cert", "")
	certs := Host{
		Scheme: "https", Host: "certs.example", Path: "/v2", Can: everything, CAs: []string{second + "/certs.example/a.crt"},
		Pairs: []KeyPair{
			{second + "/certs.example/b.cert", second + "/certs.example/b.key"},
			{second + "/certs.example/c.cert", second + "/certs.example/c.cert"},
		},
	}
	one := func(host string) []Host { return []Host{{Scheme: "https", Host: host, Path: "/v2", Can: everything}} }
	check := func(registry string, want []Host, wantErr string) {
		t.Helper()
		got, found, err := fromCertsDirs([]string{"/does/not/exist", first, second}, registry)
		if wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)) || wantErr == "" && err != nil {
			t.Errorf("%s: error %v, want %q", registry, err, wantErr)
		}
		for i := range want {
			want[i].listed = want[i].Host != "default"
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Host{}), cmpopts.EquateEmpty()); diff != "" || err == nil && found != (want != nil) {
			t.Errorf("%s: found %v: %s", registry, found, diff)
		}
	}
	check("r.example:5000", one("port"), "")
	check("r.example", one("second"), "")
	check("plain.example", one("plain.example"), "")
	check("file.example", nil, "")
	check("other.example", nil, "")
	check("bad.example", nil, second+"/bad.example/hosts.toml: line 1: unknown key x")
	check("large.example", nil, "larger than")
	check("certs.example", []Host{certs}, "")
	write(second+"/_default/hosts.toml", "server = 'https://default'")
	check("other.example", one("default"), "")
}

func FuzzHostsFile(f *testing.F) {
	f.Add(
		"server = 'https://a'\n[host.'http://b:1/c']\ncapabilities = ['pull']\nca = ['x']\nclient = [['a','b']]\nheader = {a = " +
			"'b'}\ndial_timeout = '1s'",
	)
	f.Add("host.'a'.override_path = true\n[host.'https://x'.header]\nx = ['y']")
	f.Add("host = {a = {}, b = {skip_verify = true}}")
	f.Fuzz(func(t *testing.T, text string) {
		hosts, err := parseHosts([]byte(text), "/dir", "r.example")
		if err != nil {
			return
		}
		if len(hosts) == 0 || hosts[len(hosts)-1].Can == 0 {
			t.Fatalf("%+v: the registry itself is missing", hosts)
		}
		for _, h := range hosts {
			if _, err := http.NewRequest(http.MethodGet, h.Scheme+"://"+h.Host+h.Path+"/x", nil); err != nil {
				t.Errorf("%+v: %v", h, err)
			}
			for _, file := range h.CAs {
				if !filepath.IsAbs(file) {
					t.Errorf("%q depends on where we run", file)
				}
			}
		}
	})
}
