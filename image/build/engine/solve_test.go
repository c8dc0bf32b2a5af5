package engine

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "sub", "File")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	d := digest.FromString("x")
	b := Build{
		Context: dir, Dockerfile: file, Target: "app", Args: map[string]string{"V": "1"}, Names: []string{"a:1", "b:2"}, NoCache: true,
		Bases: map[string]digest.Digest{"busybox": d, "registry.example/app:2": d}, Layout: t.TempDir(),
	}
	opt, err := b.options(func() (io.WriteCloser, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"filename": "File", "cmdline": "dockerfile.v0", "target": "app", "build-arg:V": "1", "no-cache": "",
		"context:busybox": "oci-layout://coracle-bases@" + d.String(), "context:registry.example/app:2": "oci-layout://coracle-bases@" +
			d.String(),
	}
	if !maps.Equal(opt.FrontendAttrs, want) {
		t.Errorf("attributes %v, want %v", opt.FrontendAttrs, want)
	}
	if opt.Exports[0].Attrs["name"] != "a:1,b:2" || opt.OCIStores[storeID] == nil {
		t.Errorf("options %+v", opt)
	}
	b.Bases = map[string]digest.Digest{"Not A Name": d}
	if _, err := b.options(nil); err == nil || !strings.Contains(err.Error(), "Not A Name") {
		t.Error(err)
	}
	if _, err := (&Build{Context: filepath.Join(dir, "none")}).options(nil); err == nil {
		t.Error("a context that is not there was accepted")
	}
}

func TestTail(t *testing.T) {
	var l tail
	for range 1000 {
		if n, err := l.Write([]byte("a line of the log\n")); n != 18 || err != nil {
			t.Fatal(n, err)
		}
	}
	if s := l.String(); len(s) != tailSize || !strings.HasSuffix(s, "a line of the log\n") {
		t.Errorf("%d bytes are kept", len(s))
	}
}

// A daemon that does not start says why; the next build can begin.
func TestStartFails(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "buildkitd")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho no room >&2; exit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := Start(t.Context(), Config{Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"), Buildkitd: program},
			func() { t.Error("it waits") })
		if err == nil || !strings.Contains(err.Error(), "no room") {
			t.Errorf("error %v", err)
		}
	}
}
