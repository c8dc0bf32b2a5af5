package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/coracle-project/coracle/internal/stricttoml"
)

func TestDefaultRoundTrips(t *testing.T) {
	var text bytes.Buffer
	if err := Write(&text, Default()); err != nil {
		t.Fatal(err)
	}
	got, err := Parse(text.Bytes())
	if err != nil {
		t.Fatalf("%v in\n%s", err, text.String())
	}
	if diff := cmp.Diff(Default(), got); diff != "" {
		t.Error(diff)
	}
	if err := Write(&text, Default()); err != nil {
		t.Fatal(err)
	}
}

func TestEveryKeyIsExplained(t *testing.T) {
	var walk func(reflect.Type)
	walk = func(s reflect.Type) {
		for i := range s.NumField() {
			f := s.Field(i)
			if f.Tag.Get("doc") == "" || f.Tag.Get("toml") == "" {
				t.Errorf("%s.%s has no name or explanation", s.Name(), f.Name)
			}
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[Config]())
	walk(reflect.TypeFor[Registry]())
	walk(reflect.TypeFor[Handler]())
}

// A setting by its old name holds, and is complained of.
func TestOldNames(t *testing.T) {
	c, err := Parse([]byte("[network]\nbridge = 'old0'\n"))
	if err != nil || c.Network.Name != "old0" || len(c.Warnings()) != 1 || !strings.Contains(c.Warnings()[0], "network.name") {
		t.Errorf("%+v, %v, warnings %q", c.Network, err, c.Warnings())
	}
	var text bytes.Buffer
	if err := Write(&text, c); err != nil || strings.Contains(text.String(), "bridge") || strings.Contains(fmt.Sprint(Keys(c)), "bridge") {
		t.Errorf("the old name is written: %v\n%s", err, text.String())
	}
	if w := Default().Warnings(); len(w) != 0 {
		t.Errorf("the defaults: %q", w)
	}
}

func TestParse(t *testing.T) {
	got, err := Parse([]byte(`
root = "/srv/c"
[grpc]
address = "unix:///tmp/c.sock"
[shim]
supervise = false
[network]
subnets = ["10.1.0.0/24"]
[image.registry."127.0.0.1:5000"]
plain_http = true
mirrors = ["https://mirror.example", "[::1]:5000"]
token_hosts = ["auth.example:5001"]
[runtime.handler.crun]
runtime = "oci:/usr/bin/crun"
annotations = ["run.oci.systemd.subgroup"]
[runtime.handler.kata]
runtime = "shim:io.containerd.kata.v2"
privileged_without_host_devices = true
annotations = ["io.katacontainers.*"]
overhead_cpu_millis = 250
overhead_memory_bytes = 134217728
log_file_bytes = 10485760
log_files = 3
snapshotter = "erofs"
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Root = "/srv/c"
	want.GRPC.Address = "unix:///tmp/c.sock"
	want.Shim.Supervise = false
	want.Network.Subnets = []string{"10.1.0.0/24"}
	want.Image.Registry = map[string]Registry{
		"127.0.0.1:5000": {PlainHTTP: true, Mirrors: []string{"https://mirror.example", "[::1]:5000"}, TokenHosts: []string{"auth.example:5001"}},
	}
	want.Runtime.Handler = map[string]Handler{
		"crun": {Runtime: "oci:/usr/bin/crun", Annotations: []string{"run.oci.systemd.subgroup"}},
		"kata": {
			Runtime: "shim:io.containerd.kata.v2", PrivilegedWithoutHostDevices: true, Annotations: []string{"io.katacontainers.*"},
			OverheadCPUMillis: 250, OverheadMemoryBytes: 128 << 20, LogFileBytes: 10 << 20, LogFiles: 3, Snapshotter: "erofs",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got.Socket() != "/tmp/c.sock" {
		t.Errorf("socket %q", got.Socket())
	}
	if d := Default(); d.Socket() != "/run/coracle/coracle.sock" {
		t.Errorf("default socket %q", d.Socket())
	}
	// What was read can be written and read again.
	var text bytes.Buffer
	if err := Write(&text, got); err != nil {
		t.Fatal(err)
	}
	again, err := Parse(text.Bytes())
	if err != nil {
		t.Fatalf("%v in\n%s", err, text.String())
	}
	if diff := cmp.Diff(want, again); diff != "" {
		t.Error(diff)
	}
}

func TestRejections(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown key", "root = '/a'\n[log]\nlevle = 'debug'", "line 3: unknown key log.levle"},
		{"unknown section", "[logs]\nlevel = 'debug'", "unknown key logs"},
		{"two unknown keys", "a = 1\nb = 2", "line 2: unknown key b"},
		{"unknown registry key", "[image.registry.'r:1']\nhttp = true", `line 2: unknown key image.registry."r:1".http`},
		{"not TOML", "root", "line 1: "},
		{"key twice", "root = '/a'\nroot = '/b'", "root"},
		{"number for a string", "\nroot = 5", "line 2: root: has type integer, not string"},
		{"string for a number", "[network]\nmtu = '1500'", "line 2: network.mtu: has type string, not integer"},
		{"string for a list", "[network]\nsubnets = '10.0.0.0/8'", "line 2: network.subnets: has type string, not array of strings"},
		{"string for a boolean", "[image.registry.r]\nplain_http = 'yes'", "line 2: image.registry.r.plain_http: has type string, not boolean"},
		{"table for a string", "[root]\nx = 1", "line 1: root: "},
		{"relative root", "# a\n\nroot = 'var'", `line 3: root: "var" is not an absolute path`},
		{"unclean root", "root = '/var//x/'", `write "/var/x"`},
		{"root is /", "root = '/'", "root: cannot be /"},
		{"root is state", "root = '/a'\nstate = '/a'", "state: "},
		{"tcp address", "[grpc]\naddress = 'tcp://127.0.0.1:1'", "grpc.address: "},
		{"address without path", "[grpc]\naddress = 'unix://'", "grpc.address: "},
		{"relative address", "[grpc]\naddress = 'unix://run/x'", "grpc.address: "},
		{"long address", "[grpc]\naddress = 'unix:///" + strings.Repeat("a", 107) + "'", "grpc.address: "},
		{"level", "[log]\nlevel = 'loud'", `log.level: "loud" is none of debug, info, warn, error`},
		{"format", "[log]\nformat = 'xml'", "log.format: "},
		{"scope", "[shim]\nscope = 'host'", "shim.scope: "},
		{"binary", "[shim]\nbinary = 'shim'", "shim.binary: "},
		{"supervise string", "[shim]\nsupervise = 'yes'", "shim.supervise: "},
		{"supervise number", "[shim]\nsupervise = 1", "shim.supervise: "},
		{"cgroup driver", "[cgroup]\ndriver = 'v2'", "cgroup.driver: "},
		{"cgroup root", "[cgroup]\nroot = 'pods'", "cgroup.root: "},
		{"cgroup root no slice", "[cgroup]\ndriver = 'systemd'\nroot = '/pods'", "cgroup.root: "},
		{"two names", "[network]\nname = 'a'\nbridge = 'b'", "network.bridge: "},
		{"two names, one the default", "[network]\nname = 'coracle0'\nbridge = 'b'", "network.bridge: "},
		{"long old name", "[network]\nbridge = 'abcdefghijklmnop'", "line 2: network.bridge: "},
		{"allow_from is no range", "[network]\nallow_from = ['10.0.0.1']", "network.allow_from: "},
		{"allow_from has host bits", "[network]\nallow_from = ['10.0.0.1/8']", "network.allow_from: "},
		{"no name", "[network]\nname = ''", "network.name: "},
		{"long name", "[network]\nname = 'abcdefghijklmnop'", "network.name: "},
		{"name with slash", "[network]\nname = 'a/b'", "network.name: "},
		{"name begins with digit", "[network]\nname = '0a'", "network.name: "},
		{"no subnets", "[network]\nsubnets = []", "network.subnets: "},
		{"address for a subnet", "[network]\nsubnets = ['10.0.0.1']", "network.subnets: "},
		{"prefix too long", "[network]\nsubnets = ['10.0.0.0/33']", "network.subnets: "},
		{"host bits", "[network]\nsubnets = ['10.0.0.1/24']", "write 10.0.0.0/24"},
		{"no room", "[network]\nsubnets = ['10.0.0.0/31']", "no room"},
		{"two of one family", "[network]\nsubnets = ['10.0.0.0/24', '10.0.1.0/24']", "two ranges of one family"},
		{"small mtu", "[log]\n[network]\n# 100\nmtu = 100", "line 4: network.mtu: "},
		{"small mtu in a dotted key", "\nnetwork.mtu = 100", "line 2: network.mtu: "},
		{"small mtu in an inline table", "\nnetwork = { mtu = 100 }", "line 2: network.mtu: "},
		{"large mtu", "[network]\nmtu = 70000", "network.mtu: "},
		{"conf dir", "[network]\ncni_conf_dir = ''", "network.cni_conf_dir: "},
		{"bin dir", "[network]\ncni_bin_dirs = ['bin']", "network.cni_bin_dirs: "},
		{"no downloads", "[image]\nmax_concurrent_downloads = 0", "image.max_concurrent_downloads: "},
		{"unknown snapshot driver", "[snapshot]\ndriver = 'zfs'", "snapshot.driver: "},
		{"negative limit", "[snapshot]\nmax_bytes = -1", "snapshot.max_bytes: "},
		{"negative inodes", "[snapshot]\nmax_inodes = -1", "snapshot.max_inodes: "},
		{"mark over all", "[image]\ngc_high_water = 101", "image.gc_high_water: "},
		{"low mark above", "[image]\ngc_high_water = 80\ngc_low_water = 80", "image.gc_low_water: "},
		{"pinned short name", "[image]\npinned = ['pause']", "image.pinned: "},
		{"short name of a base", "[runtime]\nrestore_bases = ['busybox']", "runtime.restore_bases: "},
		{"all bases", "[runtime]\nrestore_bases = ['*']", "runtime.restore_bases: "},
		{"pinned with stars", "[image]\npinned = ['r.example/*/pause:*']", "image.pinned: "},
		{"many downloads", "[image]\nmax_concurrent_downloads = 65", "image.max_concurrent_downloads: "},
		{"registry with scheme", "[image.registry.'http://r']\nplain_http = true", "image.registry."},
		{"registry with path", "[image.registry.'r/x']\nplain_http = true", "image.registry."},
		{"registry port", "\n[image.registry.'r:x']\nplain_http = true", `line 2: image.registry."r:x": `},
		{"empty registry", "[image.registry.'']\nplain_http = true", "image.registry."},
		{"mirror with path", "[image.registry.'r']\nmirrors = ['http://m/x']", "line 2: image.registry.r.mirrors: "},
		{"token service as URL", "[image.registry.'r']\ntoken_hosts = ['https://a']", "token_hosts: "},
		{"mirror with other scheme", "[image.registry.'r']\nmirrors = ['ftp://m']", "mirrors: "},
		{"ca file", "[image.registry.'r']\nca_file = 'ca.pem'", "ca_file: "},
		{
			"registry without downloads", "[image.registry.'r']\nmax_concurrent_downloads = -1",
			"line 2: image.registry.r.max_concurrent_downloads: ",
		},
		{"short names without registry", "[image]\nshort_name_registry = 'library'", "line 2: image.short_name_registry: "},
		{"short names with scheme", "[image]\nshort_name_registry = 'https://r.example'", "image.short_name_registry: "},
		{"short names with slash", "[image]\nshort_name_registry = 'r.example/'", "image.short_name_registry: "},
		{"progress timeout", "[image]\nimage_pull_progress_timeout = '5'", "line 2: image.image_pull_progress_timeout: "},
		{"lazy timeout", "[image]\nlazy_read_timeout = '5'", "line 2: image.lazy_read_timeout: "},
		{"short lazy timeout", "[image]\nlazy_read_timeout = '5ms'", "from 1s to 5m0s"},
		{"long lazy timeout", "[image]\nlazy_read_timeout = '1h'", "from 1s to 5m0s"},
		{"short progress timeout", "[image]\nimage_pull_progress_timeout = '5s'", "at least 1m0s"},
		{"relative certs dir", "[image]\ncerts_dirs = ['certs.d']", "image.certs_dirs: "},
		{"relative docker config", "[image]\ndocker_config = '~/.docker/config.json'", "image.docker_config: "},
		{"relative keys", "[image]\ndecryption_keys = 'keys'", "line 2: image.decryption_keys: "},
		{"relative policy", "[image]\npolicy = 'policy.toml'", "line 2: image.policy: "},
		{"empty handler", "[runtime]\nhandlers = ['']", "runtime.handlers: "},
		{"handler name", "[runtime]\nhandlers = ['Run C']", "runtime.handlers: "},
		{"handler twice", "[runtime]\nhandlers = ['a', 'a']", "runtime.handlers: "},
		{"stream without port", "[stream]\naddress = '127.0.0.1'", "stream.address: "},
		{"stream port", "[stream]\naddress = '127.0.0.1:70000'", "stream.address: "},
		{"stream for all", "[stream]\naddress = '0.0.0.0:10010'", `line 2: stream.address: "0.0.0.0:10010" is not on loopback`},
		{"stream for all, IPv6", "[stream]\naddress = '[::]:0'", "write 127.0.0.1:0"},
		{"stream without host", "[stream]\naddress = ':10010'", "is not on loopback"},
		{"stream by name", "[stream]\naddress = 'node1:10010'", "is not on loopback"},
		{"unknown ulimit", "[runtime]\nulimits = ['files=1']", "runtime.ulimits: "},
		{"ulimit twice", "[runtime]\nulimits = ['core=0', 'core=1']", "runtime.ulimits: "},
		{"negative ulimit", "[runtime]\nulimits = ['nofile=-5']", "runtime.ulimits: "},
		{"ulimit above the hard one", "[runtime]\nulimits = ['nofile=2:1']", "runtime.ulimits: "},
		{"metrics port", "[metrics]\naddress = '127.0.0.1'", "metrics.address: "},
		{"tracing scheme", "[tracing]\nendpoint = '127.0.0.1:4317'", "tracing.endpoint: "},
		{"tracing path", "[tracing]\nendpoint = 'http://127.0.0.1:4317/x'", "tracing.endpoint: "},
		{"tracing share", "[tracing]\nsample_percent = 101", "tracing.sample_percent: "},
		{"stream nothing", "[stream]\naddress = ':0'", "stream.address: "},
		{"relative nri socket", "[nri]\nsocket = 'nri.sock'", `line 2: nri.socket: "nri.sock" is not an absolute path`},
		{"long nri socket", "[nri]\nsocket = '/" + strings.Repeat("a", 107) + "'", "nri.socket: "},
		{"relative plugins", "[nri]\nplugin_dir = 'plugins'", "nri.plugin_dir: "},
		{"relative plugins' configuration", "[nri]\nplugin_config_dir = 'conf.d'", "nri.plugin_config_dir: "},
		{"handler without a runtime", "[runtime.handler.x]", `runtime.handler.x.runtime: "" is none of coracle, oci:PATH, shim:NAME`},
		{
			"handler of an unknown kind", "[runtime.handler.x]\nruntime = 'vm:x'",
			`line 2: runtime.handler.x.runtime: "vm:x" is none of coracle, oci:PATH, shim:NAME`,
		},
		{
			"relative OCI runtime", "[runtime.handler.x]\nruntime = 'oci:runc'",
			`line 2: runtime.handler.x.runtime: "runc" is not an absolute path`,
		},
		{
			"shim that is no name", "[runtime.handler.x]\nruntime = 'shim:kata'",
			`line 2: runtime.handler.x.runtime: "kata" is neither an absolute path nor a name such as io.containerd.runc.v2`,
		},
		{"shim with a relative path", "[runtime.handler.x]\nruntime = 'shim:../io.x.v2'", "runtime.handler.x.runtime: "},
		{"handler's key", "[runtime.handler.x]\nruntime = 'coracle'\npath = '/x'", "line 3: unknown key runtime.handler.x.path"},
		{"handler's name", "[runtime.handler.X_y]\nruntime = 'coracle'", `"X_y": only lower-case letters, digits and -`},
		{"handler without a name", "[runtime.handler.'']\nruntime = 'coracle'", "the unnamed handler is always there"},
		{"handler in both", "[runtime.handler.coracle]\nruntime = 'coracle'", `"coracle" is also in runtime.handlers; take it away there`},
		{
			"handler's annotations", "[runtime.handler.x]\nruntime = 'coracle'\nannotations = ['a[']",
			`line 3: runtime.handler.x.annotations: "a[" is neither a name nor a pattern`,
		},
		{
			"handler's pattern that steers", "[runtime.handler.x]\nruntime = 'coracle'\nannotations = ['*', 'run.oci.*']",
			`line 3: runtime.handler.x.annotations: "run.oci.*": such annotations tell the runtime what to do`,
		},
		{
			"handler's overhead", "[runtime.handler.x]\nruntime = 'coracle'\noverhead_memory_bytes = -1",
			"line 3: runtime.handler.x.overhead_memory_bytes: -1 is below 0",
		},
		{
			"handler's snapshotter", "[runtime.handler.x]\nruntime = 'coracle'\nsnapshotter = 'zfs'",
			`line 3: runtime.handler.x.snapshotter: "zfs"`,
		},
		{"small log", "[runtime]\nlog_file_bytes = 1000", "line 2: runtime.log_file_bytes: 1000 is neither 0 nor at least 262144"},
		{
			"negative log", "[runtime.handler.x]\nruntime = 'coracle'\nlog_file_bytes = -1",
			"line 3: runtime.handler.x.log_file_bytes: -1 is neither 0 nor at least 262144",
		},
		{
			"log of one file", "[runtime]\nlog_file_bytes = 1000000\nlog_files = 1",
			"line 3: runtime.log_files: 1 is neither 0 nor within 2 to 1000",
		},
		{"log of files without a size", "[runtime]\nlog_files = 3", "line 2: runtime.log_files: 3 files of any size: set log_file_bytes, too"},
		{
			"handler's cpu", "[runtime.handler.x]\nruntime = 'coracle'\noverhead_cpu_millis = -1",
			"runtime.handler.x.overhead_cpu_millis: -1 is below 0",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestShortNameRegistry(t *testing.T) {
	for _, good := range []string{"docker.io", "registry.example", "registry.example:5000/mirror/hub", "localhost"} {
		if _, err := Parse([]byte("[image]\nshort_name_registry = '" + good + "'")); err != nil {
			t.Error(err)
		}
	}
}

func TestKeysAreNamedAsInTheFile(t *testing.T) {
	c := Default()
	c.Image.Registry = map[string]Registry{"r:1": {PlainHTTP: true}}
	image := Keys(c)["image"].(map[string]any)
	if n := image["max_concurrent_downloads"]; n != 6 {
		t.Errorf("max_concurrent_downloads = %v", n)
	}
	want := map[string]any{"r:1": map[string]any{
		"plain_http": true, "insecure_skip_verify": false, "ca_file": "", "mirrors": []string(nil), "token_hosts": []string(nil),
		"max_concurrent_downloads": 0, "lazy": false,
	}}
	if diff := cmp.Diff(want, image["registry"]); diff != "" {
		t.Error(diff)
	}
}

func TestAllFaultsAreTold(t *testing.T) {
	_, err := Parse([]byte("root = 'a'\n[log]\nlevel = 'x'\n[network]\nmtu = 1"))
	if n := strings.Count(err.Error(), "\n"); n != 2 {
		t.Errorf("%d lines: %v", n+1, err)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if _, err := Load(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	bad := write("bad", "x = 1")
	if _, err := Load(bad); err == nil || !strings.Contains(err.Error(), bad+": line 1") {
		t.Errorf("bad: %v", err)
	}
	if _, err := Load(write("large", strings.Repeat("#", stricttoml.MaxSize+1))); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("large: %v", err)
	}
	many := write("many", "[log]\nlevel = 'x'\n[network]\nmtu = 1")
	want := "config " + many + `: line 2: log.level: "x" is none of debug, info, warn, error` + "\n" +
		"config " + many + ": line 4: network.mtu: 1 is neither 0 nor from 1280 to 65535"
	if _, err := Load(many); err == nil || err.Error() != want {
		t.Errorf("many: %v, want\n%s", err, want)
	}
	if c, err := Load(write("good", "[log]\nlevel = 'warn'")); err != nil || c.Log.Level != "warn" {
		t.Errorf("good: %+v, %v", c, err)
	}
}

func TestSupervised(t *testing.T) {
	for _, tt := range []struct {
		value         any
		systemd, want bool
	}{
		{"auto", false, true}, {"auto", true, false}, {true, true, true}, {false, false, false},
	} {
		c := Config{Shim: Shim{Supervise: tt.value}}
		if got := c.Supervised(tt.systemd); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// FuzzParse: no input panics, and what is accepted survives being written and read.
func FuzzParse(f *testing.F) {
	var text bytes.Buffer
	if err := Write(&text, Default()); err != nil {
		f.Fatal(err)
	}
	f.Add(text.Bytes())
	f.Add([]byte("root = '/a\\tb'\n[image.registry.\"r:1\"]\nmirrors = ['m']\n"))
	f.Add([]byte("root = \"/a\\u0007\\\\\\\"\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			return
		}
		var text bytes.Buffer
		if err := Write(&text, c); err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text.Bytes())
		if err != nil {
			t.Fatalf("%v in\n%s", err, text.String())
		}
		if diff := cmp.Diff(c, again, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	})
}
