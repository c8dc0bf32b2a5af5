package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// told is a log whose lines can be waited for.
type told struct {
	slog.Handler
	lines chan string
}

func newTold() told { return told{slog.DiscardHandler, make(chan string, 1000)} }

func (h told) Enabled(context.Context, slog.Level) bool { return true }

func (h told) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += fmt.Sprintf(" %s=%v", a.Key, a.Value); return true })
	h.lines <- line
	return nil
}

func (h told) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h told) WithGroup(string) slog.Handler      { return h }

// await waits for a line that contains text. What comes before it, such as half of a file, is
// passed over.
func (h told) await(t *testing.T, text string) {
	t.Helper()
	for {
		select {
		case line := <-h.lines:
			if strings.Contains(line, text) {
				return
			}
		case <-t.Context().Done():
			t.Fatalf("not told: %s", text)
		}
	}
}

const (
	inForce = "in force"
	broken  = "is broken"
	none    = "no CNI configuration any more"
)

// Whatever becomes of the configuration, and of the directory that it is in, is told, and Ready
// answers by it.
func TestCNIConfigIsFollowed(t *testing.T) {
	c := testConfig(t)
	dir := withCNI(t, &c)
	log := newTold()
	c.Log = slog.New(log)
	parent := filepath.Join(t.TempDir(), "not", "there", "yet")
	good := filepath.Join(c.CNIConfDir, "10-test.conflist")
	c.CNIConfDir = filepath.Join(parent, "net.d")
	m := started(t, c)
	put := func(path string) {
		t.Helper()
		b, err := os.ReadFile(good)
		must(t, err)
		must(t, os.WriteFile(path, b, 0o644))
	}
	ready := func(want error) {
		t.Helper()
		if err := m.Ready(t.Context()); !errors.Is(err, want) {
			t.Errorf("ready: %v, want %v", err, want)
		}
	}
	in := func(name string) string { return filepath.Join(c.CNIConfDir, name) }
	ready(nil) // the built-in bridge

	must(t, os.MkdirAll(c.CNIConfDir, 0o755))
	put(in("10-a.conflist"))
	log.await(t, inForce)
	ready(nil)

	must(t, os.WriteFile(in("05-broken.conf"), []byte("{"), 0o644))
	log.await(t, broken)
	ready(ErrConfig)

	must(t, os.Rename(in("05-broken.conf"), in("05-broken.off")))
	log.await(t, inForce)
	ready(nil)

	must(t, os.WriteFile(in("10-a.conflist"), []byte(strings.Replace(conf(dir, ""), `"name":"test"`, `"name":"other"`, 1)), 0o644))
	log.await(t, "network=other")

	must(t, os.Remove(in("10-a.conflist")))
	log.await(t, none)
	ready(nil)

	// The directory goes, and another comes: in its place, ready made, and by way of a link.
	put(in("10-a.conflist"))
	log.await(t, inForce)
	must(t, os.RemoveAll(filepath.Dir(parent)))
	log.await(t, none)
	must(t, os.MkdirAll(c.CNIConfDir, 0o755))
	put(in("10-a.conflist"))
	log.await(t, inForce)
	must(t, os.Rename(c.CNIConfDir, c.CNIConfDir+".old"))
	log.await(t, none)
	must(t, os.Rename(c.CNIConfDir+".old", c.CNIConfDir))
	log.await(t, inForce)
	must(t, os.Rename(parent, parent+".old"))
	log.await(t, none)
	must(t, os.Symlink(parent+".old", parent))
	log.await(t, inForce)
	must(t, os.Remove(in("10-a.conflist")))
	log.await(t, none)

	// Settings may name another directory.
	m.SetCNI(filepath.Dir(good), c.CNIBinDirs)
	log.await(t, inForce)
	must(t, os.WriteFile(good, nil, 0o644))
	log.await(t, broken)
	ready(ErrConfig)
}

// Links on the way to the directory may lead elsewhere, by way of other links, or to where nothing
// is yet.
func TestCNIConfigBehindLinksIsFollowed(t *testing.T) {
	c := testConfig(t)
	dir := withCNI(t, &c)
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	for _, name := range []string{"one", "two"} {
		must(t, os.MkdirAll(at(name+"/cni/net.d"), 0o755))
		text := strings.Replace(conf(dir, ""), `"name":"test"`, fmt.Sprintf(`"name":%q`, name), 1)
		must(t, os.WriteFile(at(name+"/cni/net.d/10.conflist"), []byte(text), 0o644))
	}
	link := func(name, to string) {
		t.Helper()
		must(t, os.Symlink(to, at("new")))
		must(t, os.Rename(at("new"), at(name)))
	}
	must(t, os.Mkdir(at("etc"), 0o755))
	link("current", "one")
	link("etc/cni", "../current/./cni")
	c.CNIConfDir = at("etc/cni/net.d")
	log := newTold()
	c.Log = slog.New(log)
	started(t, c)
	log.await(t, "network=one")
	link("current", at("two"))
	log.await(t, "network=two")
	link("current", "three")
	log.await(t, none)
	must(t, os.Rename(at("one"), at("three")))
	log.await(t, "network=one")
	link("etc/cni", at("two/cni"))
	log.await(t, "network=two")
	must(t, os.Remove(at("etc/cni")))
	log.await(t, none)
	link("etc/cni", at("three/cni"))
	log.await(t, "network=one")
	must(t, os.WriteFile(at("three/cni/net.d/10.conflist"), []byte("{"), 0o644))
	log.await(t, broken)
	must(t, os.Rename(at("three/cni"), at("three/old")))
	log.await(t, none)

	// Links may lead in a circle, until one is fixed.
	link("current", "current")
	link("etc/cni", at("current/cni"))
	log.await(t, "too many levels of symbolic links")
	must(t, os.Rename(at("three/old"), at("three/cni")))
	link("current", "two")
	log.await(t, "network=two")
}

// Plugins in files of their own are part of the configuration.
func TestCNIPluginFilesAreFollowed(t *testing.T) {
	c := testConfig(t)
	dir := withCNI(t, &c)
	must(t, os.RemoveAll(c.CNIConfDir))
	writeConf(t, c, "10-a.conflist", `{"cniVersion":"1.0.0","name":"split","plugins":[{"type":"fakeplugin"}]}`)
	log := newTold()
	c.Log = slog.New(log)
	started(t, c)
	log.await(t, inForce)
	must(t, os.Mkdir(filepath.Join(c.CNIConfDir, "split"), 0o755))
	writeConf(t, c, "split/00.conf", fmt.Sprintf(`{"type":"fakeplugin","dir":%q}`, dir))
	log.await(t, inForce)
	writeConf(t, c, "split/00.conf", "{")
	log.await(t, broken)
}

// A link's files may change where nothing is watched: they are read each time, until the link is
// gone.
func TestLinkedCNIConfigIsReadEachTime(t *testing.T) {
	c := testConfig(t)
	withCNI(t, &c)
	good := filepath.Join(c.CNIConfDir, "10-test.conflist")
	elsewhere := filepath.Join(t.TempDir(), "real")
	must(t, os.Rename(good, elsewhere))
	must(t, os.Symlink(elsewhere, good))
	log := newTold()
	c.Log = slog.New(log)
	m := started(t, c)
	log.await(t, "is a link")
	must(t, m.Ready(t.Context()))
	must(t, os.WriteFile(elsewhere, []byte("{"), 0o644))
	if err := m.Ready(t.Context()); !errors.Is(err, ErrConfig) {
		t.Errorf("of what it was linked to: %v", err)
	}
	must(t, os.Rename(elsewhere, good))
	log.await(t, broken)
}
