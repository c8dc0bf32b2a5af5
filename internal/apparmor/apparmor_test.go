package apparmor

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoadDefault(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	parser := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "apparmor_parser"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	parser("echo \"$@\" >" + dir + "/args; cat >" + dir + "/profile")
	if err := LoadDefault(t.Context()); err != nil {
		t.Fatal(err)
	}
	args, _ := os.ReadFile(filepath.Join(dir, "args"))
	got, _ := os.ReadFile(filepath.Join(dir, "profile"))
	if string(args) != "--replace --skip-cache\n" || string(got) != string(profile) || !strings.Contains(string(got), "profile "+Default+" ") {
		t.Errorf("called with %q and %d bytes", args, len(got))
	}
	parser("echo 'AppArmor parser error, line 3' >&2; exit 1")
	if err := LoadDefault(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 1: AppArmor parser error, line 3") {
		t.Errorf("error is %v", err)
	}
	parser("exec sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := LoadDefault(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestParse(t *testing.T) {
	got := parse("coracle-default (enforce)\nmine (complain)\ntwo words (kill)\n/usr/bin/man (enforce)\n\nodd\n")
	want := Profiles{"coracle-default": true, "mine": true, "two words": true, "/usr/bin/man": true}
	if !maps.Equal(got, want) {
		t.Errorf("read %v", got)
	}
}
