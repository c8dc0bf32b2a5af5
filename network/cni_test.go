package network

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

// fakePlugin returns the directory with the plugin that `make testbins` has built.
func fakePlugin() (string, error) {
	plugin, err := testkit.FindBin("test", "plugin", "fakeplugin")
	return filepath.Dir(plugin), err
}

// withCNI adds a working CNI configuration and returns the plugin's directory.
func withCNI(t *testing.T, c *Config) (dir string) {
	t.Helper()
	bin, err := fakePlugin()
	if err != nil {
		t.Fatal(err)
	}
	c.CNIBinDirs = []string{t.TempDir(), bin}
	dir = t.TempDir()
	writeConf(t, *c, "10-test.conflist", conf(dir, ""))
	return dir
}

func conf(dir, more string) string {
	return fmt.Sprintf(`{"cniVersion":"1.0.0","name":"test","plugins":[
		{"type":"fakeplugin","dir":%q,"capabilities":{"portMappings":true,"bandwidth":true,"dns":true,"ipRanges":true}%s}]}`, dir, more)
}

func writeConf(t *testing.T, c Config, name, content string) {
	t.Helper()
	must(t, os.MkdirAll(c.CNIConfDir, 0o755))
	must(t, os.WriteFile(filepath.Join(c.CNIConfDir, name), []byte(content), 0o644))
}

// taken returns the addresses that the plugin has given out.
func taken(t *testing.T, dir string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "192.0.2.*"))
	must(t, err)
	return len(files)
}

func pluginLog(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "log"))
	must(t, err)
	return string(b)
}

func TestCNIGetsWhatItNeeds(t *testing.T) {
	c := testConfig(t)
	dir := withCNI(t, &c)
	writeConf(t, c, "10-test.conflist", conf(dir, `,"dns":{"nameservers":["192.0.2.53"],"search":["a.test"],"options":["ndots:2"]}`))
	m := started(t, c)
	path, _ := newNetNS(t)
	p := Pod{
		ID: "a", Name: "web-0", Namespace: "shop", UID: "u1", NetNS: path,
		Ports:       []PortMapping{{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}, {Protocol: "tcp", ContainerPort: 81}},
		Annotations: map[string]string{ingressAnnotation: "10M"},
		DNS:         DNS{Servers: []string{"192.0.2.54"}, Searches: []string{"shop.svc.test", "svc.test"}, Options: []string{"ndots:5"}},
	}
	must(t, m.SetPodCIDR(t.Context(), []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:1::/64")}))
	m = started(t, c) // they are known after a restart
	r, err := m.Setup(t.Context(), p)
	must(t, err)
	if fmt.Sprint(r) != "{[192.0.2.2] [192.0.2.53] [a.test] [ndots:2]}" {
		t.Errorf("result %v", r)
	}
	log := pluginLog(t, dir)
	for _, want := range []string{
		"ADD a netns=\"" + path + "\"", "K8S_POD_NAMESPACE=shop", "K8S_POD_NAME=web-0", "K8S_POD_INFRA_CONTAINER_ID=a", "K8S_POD_UID=u1",
		"IgnoreUnknown=1",
		`"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]`,
		`"bandwidth":{"ingressRate":10000000,"ingressBurst":2147483647}`,
		`"dns":{"servers":["192.0.2.54"],"searches":["shop.svc.test","svc.test"],"options":["ndots:5"]}`,
		`"ipRanges":[[{"subnet":"198.51.100.0/24"}],[{"subnet":"2001:db8:1::/64"}]]`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the plugin was not told %s: %s", want, log)
		}
	}
	if hostLinkNames(t) != "lo" {
		t.Error("the built-in network was made, too")
	}
	// A pod that says nothing of names gets nothing; what the cluster says again is for the next
	// one.
	must(t, m.SetPodCIDR(t.Context(), []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}))
	must(t, os.Remove(filepath.Join(dir, "log")))
	connect(t, m, "b")
	if log := pluginLog(t, dir); !strings.HasSuffix(log, `config={"ipRanges":[[{"subnet":"203.0.113.0/24"}]]}`+"\n") {
		t.Errorf("the plugin was told %s", log)
	}
}

func TestCNITeardownUsesTheConfigurationOfSetup(t *testing.T) {
	for name, change := range map[string]func(*testing.T, Config){
		"deleted": func(t *testing.T, c Config) { must(t, os.RemoveAll(c.CNIConfDir)) },
		"broken":  func(t *testing.T, c Config) { writeConf(t, c, "10-test.conflist", "{") },
		"other":   func(t *testing.T, c Config) { writeConf(t, c, "00-first.conflist", conf(t.TempDir(), "")) },
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t)
			dir := withCNI(t, &c)
			m := started(t, c)
			p := connect(t, m, "a")
			change(t, c)
			// As a daemon that was killed meanwhile.
			m = started(t, c)
			if got := m.Leases(); len(got) != 1 || got[0].IPs[0] != p.ips[0] {
				t.Errorf("leases after the restart: %v", got)
			}
			must(t, m.Teardown(t.Context(), p.Pod))
			if n := taken(t, dir); n != 0 {
				t.Errorf("%d addresses are still taken", n)
			}
		})
	}
}

func TestCNISetupThatFailsLeavesNothing(t *testing.T) {
	c := testConfig(t)
	dir := withCNI(t, &c)
	writeConf(t, c, "10-test.conflist", conf(dir, `,"fail":"ADD"`))
	m := started(t, c)
	path, _ := newNetNS(t)
	_, err := m.Setup(t.Context(), Pod{ID: "a", NetNS: path})
	if err == nil || !strings.Contains(err.Error(), "told to fail") || !strings.Contains(err.Error(), `CNI network "test"`) {
		t.Errorf("error %v", err)
	}
	if n := taken(t, dir); n != 0 || len(m.Leases()) != 0 {
		t.Errorf("%d addresses and %v left", n, m.Leases())
	}
}

func TestCNITeardownThatFailsIsTriedAgain(t *testing.T) {
	c := testConfig(t)
	dir := withCNI(t, &c)
	m := started(t, c)
	p := connect(t, m, "a")
	must(t, os.WriteFile(filepath.Join(dir, "fail"), []byte("DEL"), 0o600))
	if err := m.Teardown(t.Context(), p.Pod); err == nil || !strings.Contains(err.Error(), "told to fail") {
		t.Errorf("error %v", err)
	}
	if l := m.Leases(); len(l) != 1 || !l[0].Removing {
		t.Errorf("leases %v", l)
	}
	must(t, os.Remove(filepath.Join(dir, "fail")))
	must(t, m.Recover(t.Context(), nil))
	if n := taken(t, dir); n != 0 || len(m.Leases()) != 0 {
		t.Errorf("%d addresses and %v left", n, m.Leases())
	}
}

func TestCNICrashDuringSetup(t *testing.T) {
	c := testConfig(t)
	dir := withCNI(t, &c)
	m := started(t, c)
	path, _ := newNetNS(t)
	p := Pod{ID: "a", NetNS: path}
	l, list, err := m.cni.plan(p)
	must(t, err)
	must(t, m.cni.save(l))
	if _, err := m.cni.add(t.Context(), l, list); err != nil {
		t.Fatal(err)
	}
	// Killed here: the address is taken, the record does not say so.
	m = started(t, c)
	r, err := m.Setup(t.Context(), p)
	must(t, err)
	if len(r.IPs) != 1 || taken(t, dir) != 1 {
		t.Errorf("%v, %d addresses taken", r, taken(t, dir))
	}
}

func TestPodsStayWithTheNetworkThatHasThem(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	old := connect(t, m, "old")
	dir := withCNI(t, &c)
	m = New(c) // a restart with the plugin directory known
	must(t, m.Start(t.Context()))
	defer m.Close()
	fresh := connect(t, m, "fresh")
	if taken(t, dir) != 1 {
		t.Error("a new pod is not on the new network")
	}
	r, err := m.Setup(t.Context(), old.Pod)
	if err != nil || r.IPs[0] != old.ips[0] {
		t.Errorf("the old pod: %v, %v", r, err)
	}
	must(t, m.Teardown(t.Context(), fresh.Pod))
	must(t, m.Teardown(t.Context(), old.Pod))
	must(t, m.Flush(t.Context()))
	if l := m.Leases(); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
}

func TestBadCNIConfig(t *testing.T) {
	for _, tc := range []struct{ name, file, content, says string }{
		{"empty", "10-a.conflist", " \n", "10-a.conflist: the file is empty"},
		{"not JSON", "10-a.conflist", "{\n  \"name\": \"x\",\n  oops\n}", "10-a.conflist:3:3: invalid character 'o'"},
		{"cut off", "10-a.conflist", `{"name":"x"`, "10-a.conflist:1:11: unexpected end"},
		{"wrong type", "10-a.conf", "{\"name\":\n7}", "10-a.conf:2:1: json: cannot unmarshal number"},
		{"no name", "10-a.conflist", `{"cniVersion":"1.0.0","plugins":[{"type":"x"}]}`, `"name" is missing`},
		{"no plugins", "10-a.conflist", `{"cniVersion":"1.0.0","name":"x","plugins":[]}`, "no plugin"},
		{"no type in a list", "10-a.conflist", `{"cniVersion":"1.0.0","name":"x","plugins":[{}]}`, "type"},
		{"no type", "10-a.json", `{"cniVersion":"1.0.0","name":"x"}`, `"type", the plugin's name, is missing`},
		{"list in a .conf", "10-a.conf", `{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"x"}]}`, "must end in .conflist"},
		{"path as type", "10-a.conflist", `{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"../../bin/sh"}]}`, "not the name of a plugin"},
		{"missing plugin", "10-a.conflist", `{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"no-such"}]}`, `needs the plugin "no-such"`},
		{"bad version", "10-a.conflist", `{"cniVersion":"banana","name":"x","plugins":[{"type":"fakeplugin"}]}`, "banana"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := testConfig(t)
			dir := withCNI(t, &c)
			must(t, os.RemoveAll(c.CNIConfDir))
			writeConf(t, c, tc.file, tc.content)
			writeConf(t, c, "99-good.conflist", conf(dir, "")) // must not be fallen back on
			m := started(t, c)
			path, _ := newNetNS(t)
			_, err := m.Setup(t.Context(), Pod{ID: "a", NetNS: path})
			for what, err := range map[string]error{"Setup": err, "Ready": m.Ready(t.Context())} {
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("%s: error %v, want one that says %s", what, err, tc.says)
				}
				if !errors.Is(err, ErrConfig) {
					t.Errorf("%s: %v is not ErrConfig", what, err)
				}
			}
			if len(m.Leases()) != 0 || hostLinkNames(t) != "lo" {
				t.Errorf("left: %v, %s", m.Leases(), hostLinkNames(t))
			}
		})
	}
}

func TestCNIConfigIsTheFirstByName(t *testing.T) {
	c := testConfig(t)
	second := withCNI(t, &c)
	first := t.TempDir()
	writeConf(t, c, "05-single.conf", fmt.Sprintf(`{"cniVersion":"0.4.0","name":"single","type":"fakeplugin","dir":%q}`, first))
	writeConf(t, c, "00-readme.txt", "not a configuration")
	m := started(t, c)
	connect(t, m, "a")
	if taken(t, first) != 1 || taken(t, second) != 0 {
		t.Error("another file was used")
	}
	must(t, m.Ready(t.Context()))
	if why := m.BuiltIn(); why != "" {
		t.Errorf("with a configuration, the built-in network is in force: %s", why)
	}
	m.SetCNI(t.TempDir(), c.CNIBinDirs)
	if why := m.BuiltIn(); !strings.Contains(why, "no CNI configuration in /") {
		t.Errorf("without a configuration, why the built-in network is in force: %q", why)
	}
}

func TestCNIPluginsFromFilesBesideTheList(t *testing.T) {
	c := testConfig(t)
	dir := withCNI(t, &c)
	must(t, os.RemoveAll(c.CNIConfDir))
	writeConf(t, c, "10-a.conflist", `{"cniVersion":"1.0.0","name":"split"}`)
	must(t, os.Mkdir(filepath.Join(c.CNIConfDir, "split"), 0o755))
	writeConf(t, c, "split/00.conf", fmt.Sprintf(`{"type":"fakeplugin","dir":%q}`, dir))
	m := started(t, c)
	p := connect(t, m, "a")
	must(t, os.RemoveAll(c.CNIConfDir))
	must(t, m.Teardown(t.Context(), p.Pod))
	if n := taken(t, dir); n != 0 {
		t.Errorf("%d addresses are still taken", n)
	}
}

func TestParseBits(t *testing.T) {
	for s, want := range map[string]uint64{"1k": 1000, "10M": 1e7, "1Gi": 1 << 30, "1P": 1e15, "5000": 5000} {
		if got, err := parseBits(s); err != nil || got != want {
			t.Errorf("%q = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "M", "-1M", "1.5M", "10", "2P", "99999999999999999999", "1MM", "1m", " 1M", "9999999999999999P"} {
		if got, err := parseBits(s); err == nil {
			t.Errorf("%q = %d, want an error", s, got)
		}
	}
	if _, err := bandwidthOf(map[string]string{egressAnnotation: "fast"}); !errors.Is(err, ErrConfig) ||
		!strings.Contains(err.Error(), egressAnnotation) {
		t.Errorf("error %v", err)
	}
	if b, err := bandwidthOf(map[string]string{egressAnnotation: "1M"}); err != nil ||
		b != (bandwidth{EgressRate: 1e6, EgressBurst: math.MaxInt32}) {
		t.Errorf("%+v, %v", b, err)
	}
}

func FuzzParseBits(f *testing.F) {
	for _, s := range []string{"1k", "10M", "1Gi", "", "999999999999999P"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := parseBits(s); err == nil && (n < minRate || n > maxRate) {
			t.Errorf("%q = %d", s, n)
		}
	})
}

// conf11 is conf with the version of CNI that has STATUS and GC.
func conf11(dir string) string { return strings.Replace(conf(dir, ""), "1.0.0", "1.1.0", 1) }

func TestCNIStatusIsAsked(t *testing.T) {
	c := testConfig(t)
	dir := withCNI(t, &c)
	log := newTold()
	c.Log = slog.New(log)
	m := started(t, c)
	log.await(t, inForce)
	must(t, os.WriteFile(filepath.Join(dir, "fail"), []byte("STATUS"), 0o600))
	// An older version has no such verb.
	must(t, m.Ready(t.Context()))
	must(t, os.Remove(filepath.Join(c.CNIConfDir, "10-test.conflist")))
	log.await(t, none)
	writeConf(t, c, "10-test.conflist", conf11(dir))
	log.await(t, inForce)
	if err := m.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "the plugin is not ready") {
		t.Errorf("%v", err)
	}
	must(t, os.Remove(filepath.Join(dir, "fail")))
	must(t, m.Ready(t.Context()))
}

func TestCNIGarbageIsCollected(t *testing.T) {
	c := testConfig(t)
	dir := withCNI(t, &c)
	writeConf(t, c, "10-test.conflist", conf11(dir))
	m := started(t, c)
	kept := connect(t, m, "kept")
	connect(t, m, "lost")
	// The record is gone, as after the loss of the state directory; and an address that
	// no one knows.
	must(t, os.Remove(filepath.Join(c.StateDir, "cni", "lost.json")))
	must(t, os.WriteFile(filepath.Join(dir, "192.0.2.200"), []byte("unrelated"), 0o600))
	m = started(t, c)
	must(t, m.Recover(t.Context(), []string{"kept"}))
	if n := taken(t, dir); n != 1 {
		t.Errorf("%d addresses are taken, want that of the pod that is left", n)
	}
	if !strings.Contains(pluginLog(t, dir), "DEL lost") {
		t.Error("no DEL for the pod whose record was lost")
	}
	must(t, m.Teardown(t.Context(), kept.Pod))
}
