package resolvconf

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestServers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	content := `# nameserver 192.0.2.9
; nameserver 192.0.2.8
nameserver	192.0.2.1
search example.com nameserver 192.0.2.7
nameserver fe80::1%eth0 # the router
nameserver dns.example.com
nameserver
 nameserver ::ffff:192.0.2.2
`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Servers(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := "[192.0.2.1:53 [fe80::1%eth0]:53 192.0.2.2:53]"; fmt.Sprint(got) != want {
		t.Errorf("%v, not %s", got, want)
	}
}

func TestPath(t *testing.T) {
	const stub, behind = "nameserver 127.0.0.53\noptions edns0\n", "nameserver 192.0.2.1\n"
	for name, tc := range map[string]struct {
		standard, resolved string
		want               string
	}{
		"a server of the network":          {behind, behind, "standard"},
		"systemd-resolved's stub":          {stub, behind, "resolved"},
		"a stub of another":                {stub, "", "standard"},
		"a stub that has no servers":       {stub, "# none\n", "standard"},
		"a stub and a server":              {stub + behind, behind, "standard"},
		"no servers":                       {"search example.com\n", behind, "standard"},
		"no file, as in a small container": {"", behind, "standard"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range map[string]string{"standard": tc.standard, "resolved": tc.resolved} {
				if content == "" {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := filepath.Base(path(filepath.Join(dir, "standard"), filepath.Join(dir, "resolved"))); got != tc.want {
				t.Errorf("%s, not %s", got, tc.want)
			}
		})
	}
}
