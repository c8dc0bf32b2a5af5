package server

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/registry"
)

// TestMemoryOfTables: images of many layers do not fill this process's memory with their tables of
// contents. Layers beyond the limit are refused, and those of the process before are not.
func TestMemoryOfTables(t *testing.T) {
	blob, table := smallLayer(t)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(blob))
	}))
	defer web.Close()
	domain := strings.TrimPrefix(web.URL, "http://")
	l := lazy.Layer{
		DiffID: digest.FromString("layer"), Blob: digest.FromBytes(blob), Size: int64(len(blob)), TOC: table, Timeout: time.Hour,
		Domain: domain, Path: "app", Dir: t.TempDir(), Hosts: registry.Config{Settings: map[string]registry.Settings{domain: {PlainHTTP: true}}},
	}
	s := New(nil, slog.New(slog.DiscardHandler))
	var all []*shown
	show := func(force bool) error {
		x, err := s.newShown("key", l)
		if err != nil {
			t.Fatal(err)
		}
		x.memory.force = force
		if err := x.readTable(t.Context(), true); err != nil {
			x.discard()
			return err
		}
		all = append(all, x)
		return nil
	}
	if err := show(false); err != nil {
		t.Fatal(err)
	}
	one := all[0].tree.Bytes()
	if s.tables.bytes != one {
		t.Errorf("one table takes %d bytes, and %d are counted", one, s.tables.bytes)
	}
	s.tables.most = 10 * one
	var err error
	for err == nil && len(all) < 20 {
		err = show(false)
	}
	if !errors.Is(err, lazy.ErrUnsuitable) || !strings.Contains(err.Error(), "memory") {
		t.Errorf("the tables of %d layers, in the memory of 10: %v", len(all), err)
	}
	if want := int64(len(all)) * one; len(all) < 5 || s.tables.bytes != want {
		t.Errorf("%d layers of %d bytes are shown, and %d bytes counted", len(all), one, s.tables.bytes)
	}
	all[0].discard()
	all = all[1:]
	if err := show(false); err != nil {
		t.Errorf("after another has gone: %v", err)
	}
	for len(all) < 20 {
		if err := show(true); err != nil {
			t.Fatalf("of the process before: %v", err)
		}
	}
	for _, x := range all {
		x.discard()
	}
	if err := s.Show(t.Context(), l); err == nil { // there is no directory to mount it on
		t.Error("shown nowhere")
	}
	if s.tables.bytes != 0 {
		t.Errorf("%d bytes are counted with no layer", s.tables.bytes)
	}
}
