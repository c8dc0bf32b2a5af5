package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/daemon/daemontest"
)

// Regression: under up --nodes, what is on a further node was not found.
func TestFindNode(t *testing.T) {
	t.Setenv("CORACLE_ADDRESS", "")
	dir := daemontest.Dir(t)
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	further := p.of(2, "boat-2")
	for _, dir := range []string{p.root, p.state, further.state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	o := upOptions{Node: "boat", Port: 6443, Further: 1}
	if err := o.remember(p); err != nil {
		t.Fatal(err)
	}
	daemontest.Serve(t, p.Socket(), daemontest.Runtime{Pod: "first"})
	stop := daemontest.Serve(t, further.Socket(), daemontest.Runtime{Pod: "second"})
	run := func(args ...string) (string, error) {
		cmd := command()
		cmd.SetArgs(append([]string{"--root", p.root, "--state", p.state}, args...))
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	refused := func(pod, want string) {
		if _, err := run("trace", pod); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("trace of pod %s: %v, want %q", pod, err, want)
		}
	}
	refused("first", "PodSandboxStatus") // the first node's coracled is asked
	refused("second", "node boat-2 does not run")
	refused("third", `no pod is called "third"`)
	for container, want := range map[string]string{
		"first/main": "unknown service coracle.images.v1.Images", // the first node's coracled is asked
		"second":     "node boat-2 does not run", "third": "no container is called",
	} {
		if _, err := run("image", "commit", container, "app"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("commit of container %s: %v, want %q", container, err, want)
		}
	}
	if offered, err := run("__complete", "trace", ""); err != nil || !strings.HasPrefix(offered, "first\nsecond\n") {
		t.Errorf("completion offers %q, %v", offered, err)
	}
	stop()
	refused("second", "node boat-2: ") // why it may not have been found
}

// Regression: the completion of names looked at the default --state, whatever the last up with this
// --root had.
func TestCompletionAtARememberedPlace(t *testing.T) {
	t.Setenv("CORACLE_ADDRESS", "")
	dir := daemontest.Dir(t)
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	for _, dir := range []string{p.root, p.state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	remember(t, p, upOptions{Node: "boat", Port: 6443, State: p.state})
	daemontest.Serve(t, p.Socket(), daemontest.Runtime{Pod: "first"})
	for _, place := range [][]string{{"--root", p.root}, {"--root", filepath.Join(dir, "other"), "--state", p.state}} {
		cmd := command()
		cmd.SetArgs(append(append([]string{cobra.ShellCompNoDescRequestCmd}, place...), "logs", ""))
		var out strings.Builder
		cmd.SetOut(&out)
		if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), "first") {
			t.Errorf("%v: %q, %v", place, out.String(), err)
		}
	}
	cmd := command()
	cmd.SetArgs([]string{cobra.ShellCompNoDescRequestCmd, "--root", p.root, "ps", "--namespace", ""})
	var out strings.Builder
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), "shop") {
		t.Errorf("namespaces: %q, %v", out.String(), err)
	}
}

// Regression: commands asked the coracled of the default --state, whatever the flag said.
func TestStateSaysWhichCoracledIsAsked(t *testing.T) {
	t.Setenv("CORACLE_ADDRESS", "")
	empty := t.TempDir()
	for _, args := range [][]string{
		{"pods"}, {"ps"}, {"logs", "x"}, {"exec", "x", "true"}, {"stats"}, {"events"}, {"trace", "x"}, {"image", "list"},
	} {
		cmd := command()
		cmd.SetArgs(append([]string{"--state", empty}, args...))
		cmd.SetOut(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), empty) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
