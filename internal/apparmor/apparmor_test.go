package apparmor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
	if string(args) != "--replace --skip-cache\n" || string(got) != string(pinned(directory)) ||
		!strings.Contains(string(got), "profile \""+Default+"\" ") {
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

// Regression: the profile was compiled and replaced at each start.
func TestRefresh(t *testing.T) {
	bin, state := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	parser := func(exit int) {
		t.Helper()
		script := fmt.Sprintf("#!/bin/sh\ncat >/dev/null; echo run >>%s/runs; exit %d\n", bin, exit)
		if err := os.WriteFile(filepath.Join(bin, "apparmor_parser"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	runs := 0
	refresh := func(when string, isLoaded, want bool) {
		t.Helper()
		replaced, err := Refresh(t.Context(), state, Profiles{Default: isLoaded})
		if want {
			runs++
		}
		b, rerr := os.ReadFile(filepath.Join(bin, "runs"))
		if replaced != want || err != nil || rerr != nil || strings.Count(string(b), "run\n") != runs {
			t.Errorf("%s: replaced %t, %v; runs %q, %v, want %d", when, replaced, err, b, rerr, runs)
		}
	}
	parser(0)
	refresh("first start", false, true)
	refresh("second start", true, false)
	refresh("profile is gone", false, true)
	if err := Forget(state); err != nil {
		t.Fatal(err)
	}
	refresh("an administrator's was loaded", true, true)
	if err := os.WriteFile(filepath.Join(state, StateFile), []byte("sha256:other"), 0o600); err != nil {
		t.Fatal(err)
	}
	refresh("another version's is loaded", true, true)
	parser(1)
	runs++
	if replaced, err := Refresh(t.Context(), state, Profiles{}); replaced || err == nil {
		t.Errorf("parser fails: replaced %t, %v", replaced, err)
	}
	parser(0)
	refresh("after a failure", true, true)
}

// Sockets that no network namespace contains are denied; seccomp's filter cannot see the family
// that a 32-bit program asks for.
func TestProfileDeniesFamilies(t *testing.T) {
	for _, want := range []string{"\n  deny network alg,\n", "\n  deny network vsock,\n"} {
		if !strings.Contains(string(profile), want) {
			t.Errorf("no %q in\n%s", want, profile)
		}
	}
}

func TestAdministrators(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("abi/3.0", "")
	write("others", "# profile coracle-default\nprofile coracle-default-2 {\n}\n")
	for _, missing := range []string{dir, filepath.Join(dir, "none")} {
		if got, err := declared(missing); got != "" || err != nil {
			t.Errorf("found %q, %v in %s", got, err, missing)
		}
	}
	if !strings.HasPrefix(string(pinned(dir)), "abi <abi/3.0>,\n") || strings.HasPrefix(string(pinned(t.TempDir())), "abi") {
		t.Error("the version of the rules is wrong")
	}
	for _, line := range []string{
		"profile coracle-default {", "profile \"coracle-default\" flags=(complain) {",
		"  profile coracle-default\n{",
	} {
		file := write("own", "# mine\n"+line+"\n}\n")
		if got, err := declared(dir); got != file || err != nil {
			t.Errorf("%s: found %q, %v", line, got, err)
		}
	}
}

// Regression: a profile that is linked into the directory was replaced.
func TestLinkedAdministrators(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "own")
	if err := os.WriteFile(elsewhere, []byte("profile coracle-default {\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		os.Symlink("nothing", filepath.Join(dir, "a-dangling")), os.Symlink(filepath.Dir(elsewhere), filepath.Join(dir, "b-directory")),
		syscall.Mkfifo(filepath.Join(dir, "c-fifo"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	if got, err := declared(dir); got != "" || err != nil {
		t.Errorf("without the link: found %q, %v", got, err)
	}
	link := filepath.Join(dir, "d-link")
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	if got, err := declared(dir); got != link || err != nil {
		t.Errorf("found %q, %v, want %s", got, err, link)
	}
}

func TestParse(t *testing.T) {
	got := parse("coracle-default (enforce)\nmine (complain)\ntwo words (kill)\n/usr/bin/man (enforce)\n\nodd\n")
	want := Profiles{"coracle-default": true, "mine": true, "two words": true, "/usr/bin/man": true}
	if !maps.Equal(got, want) {
		t.Errorf("read %v", got)
	}
}
