package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

var updatePage = flag.Bool("update-page", false, "write the keys of the cluster's configuration file into its page")

// A fault of the file is one line that names the place, and nothing is made.
func TestClusterFileFaults(t *testing.T) {
	for name, test := range map[string]struct{ file, want string }{
		"misspelt":        {"node-name: a\nprot: 1\n", `line 2: unknown key "prot", did you mean "port"?`},
		"unlike any":      {"xxxxxxxxxxxxxxxx: 1", `line 1: unknown key "xxxxxxxxxxxxxxxx"`},
		"only a flag":     {"apply: a.yaml", `line 1: unknown key "apply"`},
		"twice":           {"port: 1\n\nport: 2", `line 3: duplicate key "port"`},
		"no number":       {"port: many", `line 1: port: "many": invalid syntax`},
		"too large":       {"port: 99999999999999999999", `line 1: port: "99999999999999999999": value out of range`},
		"neither":         {"network-policies: perhaps", `line 1: network-policies: "perhaps" is neither true nor false`},
		"no duration":     {"timeout: long", `line 1: timeout: time: invalid duration "long"`},
		"a list":          {"port: [1, 2]", "line 1: port: a list, but it has one value"},
		"a map":           {"port: {a: 1}", "line 1: port: neither a value nor a list of values"},
		"nothing":         {"port:\n", "line 1: port: no value"},
		"relative path":   {"runtime-config: c.toml", `line 1: runtime-config: "c.toml" is no absolute path`},
		"no map":          {"- port", "line 1: no 'key: value'"},
		"two documents":   {"port: 1\n---\nport: 2", "line 2: a second document: the file has one"},
		"not YAML":        {"port: [1\nnode-name: a", "yaml: line 1: did not find expected ',' or ']'"},
		"open to others":  {"server: https://a:1\ntoken: a.b\nca-hash: c", "line 2: a token in a file that others may read: chmod 600 FILE"},
		"half a cluster":  {"server: https://a:1\nca-hash: c", "line 1: server without token: 'coracle token create' on its machine prints both"},
		"too many things": {strings.Repeat("#", longestClusterFile+1), "--config: FILE is larger than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cluster.yaml")
			if err := os.WriteFile(path, []byte(test.file), 0o644); err != nil {
				t.Fatal(err)
			}
			var o upOptions
			flags := upFlags(&o)
			if err := flags.Parse([]string{"--config", path}); err != nil {
				t.Fatal(err)
			}
			p := place{root: filepath.Join(t.TempDir(), "root"), state: filepath.Join(t.TempDir(), "state")}
			err := upByFile(t.Context(), p, &o, flags, t.Output())
			if err == nil {
				t.Fatal("no error")
			}
			said := strings.ReplaceAll(strings.ReplaceAll(err.Error(), path+": ", ""), path, "FILE")
			if said != "up: "+test.want {
				t.Errorf("%q, want %q", said, "up: "+test.want)
			}
			if _, err := os.Stat(p.root); err == nil {
				t.Error("up has made its directory")
			}
		})
	}
}

// The file sets flags, and the command line overrides it.
func TestClusterFileSetsFlags(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	file := `# a comment
port: 7443
node-ip: [10.0.0.1, "fd00::1"]
etcd-servers: http://a:1,http://b:1
network-policies: false
node-name: boat
`
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	var o upOptions
	flags := upFlags(&o)
	if err := flags.Parse([]string{"--config", path, "--node-name", "ship"}); err != nil {
		t.Fatal(err)
	}
	c, err := o.openClusterFile(place{root: t.TempDir()}, flags)
	if err == nil {
		err = c.apply(flags, joinKeys...)
	}
	if err != nil {
		t.Fatal(err)
	}
	got := []any{o.Port, o.NodeIPs, o.Etcd, bool(o.PoliciesOff), o.Node, flags.Changed("port"), flags.Changed("service-cidr")}
	want := []any{7443, []string{"10.0.0.1", "fd00::1"}, []string{"http://a:1", "http://b:1"}, true, "ship", true, false}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"etcd-servers", "network-policies", "node-ip", "node-name", "port"}, c.keys()); diff != "" {
		t.Error(diff)
	}
}

// The file of --config is remembered, and has to exist while it gives settings.
func TestClusterFileIsRemembered(t *testing.T) {
	p := place{root: t.TempDir()}
	dir := t.TempDir()
	t.Chdir(dir)
	file := filepath.Join(dir, "c.yaml")
	up := func(args ...string) (upOptions, error) {
		t.Helper()
		var o upOptions
		flags := upFlags(&o)
		if err := flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		c, err := o.openClusterFile(p, flags)
		if err == nil {
			err = c.apply(flags)
		}
		if o.FromFile = c.keys(); err == nil {
			remember(t, p, o)
		}
		return o, err
	}
	if o, err := up(); err != nil || o.Port != 6443 {
		t.Errorf("no file: %d, %v", o.Port, err)
	}
	if _, err := up("--config", "c.yaml"); err == nil {
		t.Error("a file was named that does not exist")
	}
	if err := os.WriteFile(file, []byte("port: 7443\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if o, err := up("--config", "c.yaml"); err != nil || o.Port != 7443 {
		t.Errorf("named: %d, %v", o.Port, err)
	}
	t.Chdir(t.TempDir())
	if o, err := up(); err != nil || o.Port != 7443 {
		t.Errorf("remembered: %d, %v", o.Port, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := up(); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "--config ''") {
		t.Errorf("a file that has gone, with its settings: %v", err)
	}
	for range 2 {
		if o, err := up("--config", ""); err != nil || o.Port != 6443 || o.clusterFile(p) != "" {
			t.Errorf("none: %+v, %v", o, err)
		}
	}
	if o, err := up(); err != nil || o.clusterFile(place{root: defaultRoot}) != "" {
		t.Errorf("none is remembered: %+v, %v", o, err)
	}
}

// A node of another cluster applies no manifests. Regression: up ignored --apply there.
func TestNodeAppliesNothing(t *testing.T) {
	p := place{root: t.TempDir(), state: t.TempDir()}
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("server: https://192.0.2.1:6443\ntoken: a.b\nca-hash: c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"--apply is for a cluster of this machine's own":      {"--config", file, "--apply", "a.yaml", "--timeout", "1m"},
		"--pod-cidr is for a cluster of this machine's own":   {"--config", file, "--service-cidr", defaultServices, "--pod-cidr", "none", "--apply", "a"},
		"up --apply: this machine is node two of the cluster": nil,
	} {
		o := upOptions{Server: "https://192.0.2.1:6443", Node: "two", apply: []string{"a.yaml"}}
		err := o.checkAgent(nil)
		if args != nil {
			flags := upFlags(&o)
			if err := flags.Parse(args); err != nil {
				t.Fatal(err)
			}
			err = upByFile(t.Context(), p, &o, flags, t.Output())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// What is in /etc is for the cluster in the default --root only.
func TestFilesOfOtherRoots(t *testing.T) {
	var o upOptions
	one, other := place{root: defaultRoot}, place{root: "/srv/coracle"}
	got := []string{o.clusterFile(one), o.clusterFile(other), o.manifests(one), o.manifests(other)}
	if diff := cmp.Diff([]string{"/etc/coracle/cluster.yaml", "", "/etc/coracle/manifests", "none"}, got); diff != "" {
		t.Error(diff)
	}
	if slices.Contains(kubeArgs(other, o), "--manifests") {
		t.Error("coracle-kube gets manifests")
	}
	o.ClusterFile, o.Manifests = "/srv/c.yaml", "/srv/m"
	if o.clusterFile(other) != o.ClusterFile || o.manifests(other) != o.Manifests {
		t.Error("what was named is not used")
	}
}

// A key that is taken out of the file has its default again; a flag is remembered.
func TestKeyTakenOut(t *testing.T) {
	p := place{root: t.TempDir(), state: t.TempDir()}
	last := upOptions{Port: 7443, Node: "boat", ServiceCIDR: "10.112.0.0/16", FromFile: []string{"port", "service-cidr"}}
	if err := last.remember(p); err != nil {
		t.Fatal(err)
	}
	o := upOptions{Port: 6443, Node: "host", ServiceCIDR: "10.112.0.0/16", FromFile: []string{"service-cidr"}}
	differ := o.follow(remembered(p), func(flag string) bool { return flag == "service-cidr" })
	if o.Port != 6443 || o.Node != "boat" || o.ServiceCIDR != "10.112.0.0/16" || !slices.Equal(differ, []string{"port"}) {
		t.Errorf("%+v, %v", o, differ)
	}
}

// Each key is in the page with what it means, and no other.
func TestClusterFilePage(t *testing.T) {
	const page, begin, end = "../../docs/cluster-file.md", "<!-- keys -->\n", "<!-- end of keys -->\n"
	var o upOptions
	var j joining
	flags := upFlags(&o)
	j.define(flags)
	var rows strings.Builder
	rows.WriteString("| key | meaning | default |\n| --- | --- | --- |\n")
	for _, key := range clusterKeys() {
		f := flags.Lookup(key)
		_, usage := pflag.UnquoteUsage(f)
		byDefault := f.DefValue
		if strings.HasSuffix(usage, ")") && strings.Count(usage, "(default: ") == 1 {
			usage = strings.TrimSuffix(usage, ")")
		}
		if before, after, ok := strings.Cut(usage, " (default: "); ok && !strings.Contains(after, ")") {
			usage, byDefault = before, after
		}
		switch {
		case key == "node-name":
			byDefault = "the machine's name"
		case byDefault == "[]" || byDefault == "0":
			byDefault = ""
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", key, strings.ReplaceAll(usage, "|", "\\|"), byDefault)
	}
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	has, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: no place for the keys", page)
	}
	if has == rows.String() {
		return
	}
	if !*updatePage {
		t.Fatalf("%s differs: 'go test ./cmd/coracle -run %s -update-page' writes it\n%s", page, t.Name(), cmp.Diff(has, rows.String()))
	}
	if err := os.WriteFile(page, []byte(before+begin+rows.String()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
