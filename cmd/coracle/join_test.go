package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const someToken = "abcdef.0123456789abcdef"

// A token in the arguments of a process could be read by every user of the machine.
func TestTokenIsNoArgument(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$@\" > " + dir + "/args\ncat > " + dir + "/input\necho '{}'\n"
	if err := os.WriteFile(filepath.Join(dir, "coracle-kube"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	if err := os.MkdirAll(p.root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.kubeconfig(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	passed := func(command string) {
		t.Helper()
		args, err := os.ReadFile(filepath.Join(dir, "args"))
		if err != nil || !strings.Contains(string(args), command) || strings.Contains(string(args), "0123456789") {
			t.Errorf("the arguments are %q, %v", args, err)
		}
		if input, err := os.ReadFile(filepath.Join(dir, "input")); err != nil || string(input) != someToken {
			t.Errorf("the input is %q, %v", input, err)
		}
	}
	j := joining{server: "https://192.0.2.1:6443", token: someToken, hashes: []string{"sha256:12"}}
	if err := j.ask(t.Context(), p, "two"); err != nil {
		t.Fatal(err)
	}
	passed("agent join https://192.0.2.1:6443")
	cmd := tokenCreateCommand(&p)
	cmd.SetArgs([]string{"--token", someToken})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	passed("token --kubeconfig")
}

func TestGivenToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for text, want := range map[string]string{
		someToken: someToken, someToken + "\n": someToken, "": "", "\n": "", "a b": "", strings.Repeat("a", longestToken+1): "",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, from := range []string{file, "-"} {
			got, err := givenToken("", from, strings.NewReader(text))
			if got != want || (err == nil) != (want != "") {
				t.Errorf("%.30q from %s is %q, %v", text, from, got, err)
			}
		}
	}
	if _, err := givenToken("", filepath.Join(t.TempDir(), "none"), nil); err == nil || !strings.Contains(err.Error(), "--token-file") {
		t.Errorf("a file that does not exist: %v", err)
	}
}
