package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cacheFile returns a pod's file in libcni's cache.
func cacheFile(c Config, podID string) string {
	return filepath.Join(c.StateDir, "cni-cache/results", "test-"+podID+"-eth0")
}

// Regression: a damaged record of a pod on CNI prevented the daemon from starting.
func TestCNIDamagedRecord(t *testing.T) {
	caches := map[string]func(t *testing.T, path string){
		"whole":     func(*testing.T, string) {},
		"truncated": damage["truncated"],
		"missing":   damage["missing"],
	}
	for name, hurt := range damage {
		for cache, hurtCache := range caches {
			t.Run(name+", cache "+cache, func(t *testing.T) {
				c := testConfig(t)
				dir := withCNI(t, &c)
				writeConf(t, c, "10-test.conflist", conf11(dir)) // with garbage collection
				m := started(t, c)
				a, b := connect(t, m, "a"), connect(t, m, "b")
				hurt(t, m.cni.records.path("a"))
				hurtCache(t, cacheFile(c, "a"))
				if cache == "whole" { // for a known pod, the configuration of its setup is used
					writeConf(t, c, "10-test.conflist", conf11(t.TempDir()))
				}
				m = started(t, c)
				must(t, m.Recover(t.Context(), []string{"a", "b"}))
				if n := taken(t, dir); n != 2 {
					t.Errorf("%d addresses are taken: one of a running pod was freed", n)
				}
				l, ok := m.cni.lease("a")
				switch {
				case cache == "whole" && (l.Stage != connected || len(l.Result.IPs) != 1 || l.Result.IPs[0] != a.ip4() || l.NetNS != a.NetNS):
					t.Errorf("lease %+v", l)
				case cache != "whole" && name != "missing" && l.Stage != adding:
					t.Errorf("lease %+v", l)
				case cache != "whole" && name == "missing":
					if ok {
						t.Errorf("lease %+v of a pod of which nothing is known", l)
					}
					return // garbage, once no pod is claimed
				}
				must(t, os.Remove(filepath.Join(dir, "log")))
				must(t, m.Teardown(t.Context(), a.Pod))
				if log := pluginLog(t, dir); !strings.HasPrefix(log, fmt.Sprintf("DEL a netns=%q", a.NetNS)) ||
					!strings.Contains(log, "K8S_POD_UID=a") {
					t.Errorf("the plugin was told %s", log)
				}
				must(t, m.Teardown(t.Context(), b.Pod))
				if n := taken(t, dir); n != 0 || len(m.Leases()) != 0 {
					t.Errorf("%d addresses are taken, leases %v", n, m.Leases())
				}
			})
		}
	}
}

// Nothing is left to take a pod down with: its namespace is removed without the plugins.
func TestCNIDamagedRecordAndNoConfiguration(t *testing.T) {
	c := testConfig(t)
	withCNI(t, &c)
	m := started(t, c)
	connect(t, m, "a")
	must(t, os.Truncate(m.cni.records.path("a"), 0))
	must(t, os.RemoveAll(filepath.Join(c.StateDir, "cni-cache")))
	must(t, os.RemoveAll(c.CNIConfDir))
	m = started(t, c)
	must(t, m.Recover(t.Context(), nil))
	if l := m.Leases(); len(l) != 0 {
		t.Errorf("leases %v", l)
	}
}

// A damaged result in libcni's cache does not prevent a pod's teardown.
func TestCNIDamagedCache(t *testing.T) {
	c := testConfig(t)
	dir := withCNI(t, &c)
	m := started(t, c)
	a := connect(t, m, "a")
	must(t, os.Truncate(cacheFile(c, "a"), 9))
	m = started(t, c)
	must(t, m.Recover(t.Context(), []string{"a"}))
	must(t, m.Teardown(t.Context(), a.Pod))
	if n := taken(t, dir); n != 0 {
		t.Errorf("%d addresses are taken", n)
	}
}

// Regression: a start waited for a deletion, and then for a garbage collection that hung.
func TestCNIRecoverDoesNotWaitForHungGarbageCollection(t *testing.T) {
	c := testConfig(t)
	dir := hangingPlugin(t, &c)
	m := started(t, c)
	connect(t, m, "gone")
	release := hang(t, dir, "GC", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := inBackground(func() error { return m.Recover(ctx, nil) })
	_, gone := hung(t, dir)
	awaitLeases(t, m, 0) // of the removed pod
	cancel()
	if err := wait(); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "garbage collection") {
		t.Errorf("error %v", err)
	}
	gone()
	release()
}
