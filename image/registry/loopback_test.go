package registry

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// counter is a service on loopback that counts who connects to it.
func counter(t *testing.T) (port string, connected *atomic.Int64) {
	t.Helper()
	connected = new(atomic.Int64)
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connected.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	must(t, err)
	return port, connected
}

// TestNamesOfImagesReachNoPortOfTheHost: the node connects to the registry that a pod's image
// names. That must not be a port that only the host itself can reach.
func TestNamesOfImagesReachNoPortOfTheHost(t *testing.T) {
	port, connected := counter(t)
	pull := func(c *Client, name string) error {
		_, _, err := repository(t, c, name, Auth{}).Resolve(t.Context(), "latest")
		return err
	}
	names := []string{"127.0.0.1:", "localhost:", "0.0.0.0:", "127.9.9.9:", "[::ffff:127.0.0.1]:"}
	for _, name := range names {
		c := client(t, Config{OnlyListedLoopback: true}, "", "")
		if err := pull(c, name+port); !errors.Is(err, errLoopback) || !strings.Contains(err.Error(), "[image.registry.") {
			t.Errorf("%s%s: %v, want a refusal", name, port, err)
		}
	}
	if n := connected.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
	// Where the setting is off, each name gets there.
	for i, name := range names[:3] {
		if err := pull(client(t, Config{}, "", ""), name+port); errors.Is(err, errLoopback) || connected.Load() <= int64(i) {
			t.Errorf("control: %s%s: %v after %d connections", name, port, err, connected.Load())
		}
	}
	// Neither is it of use to name an allowed one and be sent elsewhere, also not to :: with a zone,
	// which is no unspecified address to netip.
	for _, target := range []string{"localhost", "[::%25lo]"} {
		victim, reached := counter(t)
		door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+target+":"+victim+r.URL.Path, http.StatusTemporaryRedirect)
		}))
		t.Cleanup(door.Close)
		host := hostPort(t, door.URL)
		allowed := Config{OnlyListedLoopback: true, Settings: map[string]Settings{host: {PlainHTTP: true}}}
		if err := pull(client(t, allowed, "", ""), host); !errors.Is(err, errLoopback) || reached.Load() != 0 {
			t.Errorf("by a redirect to %s: %v after %d connections", target, err, reached.Load())
		}
		allowed.OnlyListedLoopback = false
		if err := pull(client(t, allowed, "", ""), host); errors.Is(err, errLoopback) || reached.Load() == 0 {
			t.Errorf("control: by a redirect to %s: %v after %d connections", target, err, reached.Load())
		}
	}
}

// TestListedLoopbackRegistries are reached, however the settings name them.
func TestListedLoopbackRegistries(t *testing.T) {
	f := newFake(t)
	f.mu.Lock()
	f.blobs["latest"] = []byte(`{"schemaVersion":2}`)
	f.mu.Unlock()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, f.host()), 0o755))
	defaults := t.TempDir()
	must(t, os.Mkdir(filepath.Join(defaults, "_default"), 0o755))
	must(t, os.WriteFile(filepath.Join(defaults, "_default", "hosts.toml"), []byte("[host.\"http://"+f.host()+"\"]\n"), 0o600))
	empty := t.TempDir()
	must(t, os.Mkdir(filepath.Join(empty, "_default"), 0o755))
	for name, tc := range map[string]struct {
		cfg      Config
		registry string
		refused  bool
	}{
		"settings":                 {cfg: Config{Settings: map[string]Settings{f.host(): {PlainHTTP: true}}}},
		"settings that say little": {cfg: Config{Settings: map[string]Settings{f.host(): {MaxConcurrentDownloads: 1, PlainHTTP: true}}}},
		"a mirror": {
			cfg:      Config{Settings: map[string]Settings{"r.invalid": {Mirrors: []string{"http://" + f.host()}}}},
			registry: "r.invalid",
		},
		"its directory":         {cfg: Config{CertsDirs: []string{dir}}},
		"the default's mirror":  {cfg: Config{CertsDirs: []string{defaults}}, registry: "r.invalid"},
		"not by another's name": {cfg: Config{Settings: map[string]Settings{"r.invalid": {PlainHTTP: true}}}, refused: true},
		"not by the default":    {cfg: Config{CertsDirs: []string{empty}}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.registry == "" {
				tc.registry = f.host()
			}
			tc.cfg.OnlyListedLoopback = true
			r := repository(t, client(t, tc.cfg, "", ""), tc.registry, Auth{})
			_, _, err := r.Resolve(t.Context(), "latest")
			if tc.refused != errors.Is(err, errLoopback) || !tc.refused && err != nil {
				t.Errorf("%v", err)
			}
		})
	}
}

// FuzzRefuseLoopback compares the guard with what the kernel takes for this machine.
func FuzzRefuseLoopback(f *testing.F) {
	for _, a := range []string{
		"127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "[::]:1", "[::ffff:127.1.2.3]:1", "10.0.0.1:1", "[fe80::1%lo]:1", "x", "[::%lo]:1",
		"127.1:1",
	} {
		f.Add(a)
	}
	f.Fuzz(func(t *testing.T, address string) {
		err := refuseLoopback("tcp", address, nil)
		a, perr := netip.ParseAddrPort(address)
		if perr != nil {
			if err == nil {
				t.Errorf("%q, which is no address, passed", address)
			}
			return
		}
		ip := net.IP(a.Addr().AsSlice())
		if own := ip.IsLoopback() || ip.IsUnspecified(); own != errors.Is(err, errLoopback) {
			t.Errorf("%q: %v", address, err)
		}
	})
}
