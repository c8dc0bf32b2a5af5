package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
	"github.com/coracle-project/coracle/cmd/coracle/daemon/daemontest"
)

// things is an inventory of pods "id namespace/name" and containers "id pod-id name attempt".
func things(pods, containers []string) inventory {
	var ps []*runtimeapi.PodSandbox
	for i, s := range pods {
		f := strings.Fields(s)
		ns, name, _ := strings.Cut(f[1], "/")
		ps = append(ps, &runtimeapi.PodSandbox{
			Id: f[0], CreatedAt: int64(i), Metadata: &runtimeapi.PodSandboxMetadata{Namespace: ns, Name: name},
		})
	}
	var cs []*runtimeapi.Container
	for i, s := range containers {
		f := strings.Fields(s)
		cs = append(cs, &runtimeapi.Container{
			Id: f[0], PodSandboxId: f[1], CreatedAt: int64(i),
			Metadata: &runtimeapi.ContainerMetadata{Name: f[2], Attempt: uint32(f[3][0] - '0')},
		})
	}
	return newInventory(ps, cs)
}

var someThings = things(
	[]string{"aa11 shop/web", "aa22 shop/db", "bb33 test/web", "cc44 shop/job", "cc55 shop/job"},
	[]string{
		"c100 aa11 nginx 0", "c101 aa11 nginx 1", "c102 aa11 sidecar 0",
		"c200 aa22 postgres 0",
		"d300 bb33 nginx 0", "d301 bb33 other 0",
		"e400 cc44 main 0", "e500 cc55 main 0",
	})

func TestNamingContainers(t *testing.T) {
	for _, tc := range []struct{ name, means, err string }{
		{name: "c200", means: "c200"},
		{name: "c2", means: "c200"},
		{name: "postgres", means: "c200"},
		{name: "db", means: "c200"},
		{name: "shop/db", means: "c200"},
		{name: "shop/web/nginx", means: "c101"},
		{name: "c100", means: "c100"},
		{name: "job", means: "e500"},
		{name: "sidecar", means: "c102"},
		{name: "nginx", err: `"nginx" could be each of shop/web/nginx (c101), test/web/nginx (d300); say more`},
		{name: "web/nginx", err: "could be each of"},
		{name: "shop/web", err: "shop/web/nginx (c101), shop/web/sidecar (c102)"},
		{name: "c1", err: "could be each of"},
		{name: "", err: `no container is called ""`},
		{name: "none", err: `no container is called "none"; 'coracle ps -a' lists them`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := someThings.container(tc.name)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, %v; want %q", c, err, tc.err)
				}
			} else if err != nil || c.GetId() != tc.means {
				t.Errorf("%v, %v; want %s", c, err, tc.means)
			}
		})
	}
}

func TestNamingPods(t *testing.T) {
	for _, tc := range []struct{ name, means, err string }{
		{name: "aa2", means: "aa22"},
		{name: "db", means: "aa22"},
		{name: "test/web", means: "bb33"},
		{name: "job", means: "cc55"},
		{name: "cc44", means: "cc44"},
		{name: "web", err: "shop/web (aa11), test/web (bb33)"},
		{name: "aa", err: "could be each of"},
		{name: "none", err: `no pod is called "none"; 'coracle pods' lists them`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := someThings.pod(tc.name)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, %v; want %q", p, err, tc.err)
				}
			} else if err != nil || p.GetId() != tc.means {
				t.Errorf("%v, %v; want %s", p, err, tc.means)
			}
		})
	}
}

func TestPreviousAttempt(t *testing.T) {
	c, _ := someThings.container("shop/web/nginx")
	p, err := someThings.previous(c)
	if err != nil || p.GetId() != "c100" {
		t.Errorf("%v, %v", p, err)
	}
	if p, err = someThings.previous(p); err == nil || !strings.Contains(err.Error(), "no attempt before") {
		t.Errorf("%v, %v", p, err)
	}
}

func TestOffersMeanOneThing(t *testing.T) {
	pods := someThings.podNames()
	if want := []string{"db", "job", "shop/web", "test/web"}; !slices.Equal(pods, want) {
		t.Errorf("pods %q, want %q", pods, want)
	}
	for _, name := range pods {
		if _, err := someThings.pod(name); err != nil {
			t.Error(err)
		}
	}
	containers := someThings.containerNames(false)
	if want := []string{"db/postgres", "job/main", "shop/web/nginx", "web/sidecar", "test/web/nginx", "web/other"}; !slices.Equal(containers,
		want) {
		t.Errorf("containers %q, want %q", containers, want)
	}
	for _, name := range containers {
		if _, err := someThings.container(name); err != nil {
			t.Error(err)
		}
	}
}

// A container whose pod went between the two lists is still there to be named.
func TestContainerWithoutPod(t *testing.T) {
	v := things(nil, []string{"c1 gone main 0"})
	if c, err := v.container("main"); err != nil || c.GetId() != "c1" {
		t.Errorf("%v, %v", c, err)
	}
}

// Regression: under up --nodes, what is on a further node was not found.
func TestFindNode(t *testing.T) {
	t.Setenv("CORACLE_ADDRESS", "")
	dir, err := os.MkdirTemp("", "c-") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
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
	daemontest.Serve(t, p.socket(), daemontest.Runtime{Pod: "first"})
	stop := daemontest.Serve(t, further.socket(), daemontest.Runtime{Pod: "second"})
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

// Regression: a node whose coracled hangs kept commands about the other nodes waiting.
func TestNodeThatDoesNotAnswer(t *testing.T) {
	t.Setenv("CORACLE_ADDRESS", "")
	dir, err := os.MkdirTemp("", "c-") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	further := p.of(2, "boat-2")
	for _, dir := range []string{p.root, p.state, further.state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := (upOptions{Node: "boat", Port: 6443, Further: 1}).remember(p); err != nil {
		t.Fatal(err)
	}
	daemontest.Serve(t, p.socket(), daemontest.Runtime{Pod: "first", Listed: make(chan struct{})})
	daemontest.Serve(t, further.socket(), daemontest.Runtime{Pod: "second"})
	w := &workload{daemon: daemon.New(p.socket), place: &p, patience: 100 * time.Millisecond}
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	all, nodeOf, missing := w.inventoryOfAll(cmd)
	if len(all.pods) != 1 || nodeOf["second"] != "boat-2" || missing == nil ||
		!strings.Contains(missing.Error(), "coracled has not answered within 100ms") {
		t.Errorf("%v on %v, %v", all.pods, nodeOf, missing)
	}
}

// Regression: stats, top and events were about the first node of up --nodes.
func TestUsageAndEventsOfAllNodes(t *testing.T) {
	t.Setenv("CORACLE_ADDRESS", "")
	dir, err := os.MkdirTemp("", "c-") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	further := p.of(2, "boat-2")
	for _, dir := range []string{p.root, p.state, further.state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	remember(t, p, upOptions{Node: "boat", Port: 6443, Further: 1})
	daemontest.Serve(t, p.socket(), daemontest.Runtime{Pod: "first"})
	stop := daemontest.Serve(t, further.socket(), daemontest.Runtime{Pod: "second"})
	run := func(args ...string) (string, error) {
		cmd := command()
		cmd.SetArgs(append([]string{"--root", p.root, "--state", p.state}, args...))
		var out strings.Builder
		cmd.SetOut(&out)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	for _, args := range [][]string{{"stats", "-p"}, {"top", "-p", "--updates", "1"}} {
		out, err := run(args...)
		if err != nil || !regexp.MustCompile(`(?s)NODE.*\nboat +shop +first .*\nboat-2 +shop +second `).MatchString(out) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}

	out, in := io.Pipe()
	cmd := command()
	cmd.SetArgs([]string{"--root", p.root, "--state", p.state, "events"})
	cmd.SetOut(in)
	cmd.SetErr(in)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx); in.Close() }()
	lines := bufio.NewScanner(out)
	var seen []string
	for len(seen) < 2 && lines.Scan() {
		seen = append(seen, lines.Text())
	}
	slices.SortFunc(seen, func(a, b string) int { return len(a) - len(b) })
	if len(seen) != 2 || !strings.Contains(seen[0], "boat  pod shop/first") || !strings.Contains(seen[1], "boat-2  pod shop/second") {
		t.Errorf("events: %q, %v", seen, lines.Err())
	}
	cancel()
	go func() { _, _ = io.Copy(io.Discard, out) }()
	if err := <-ended; err != nil {
		t.Errorf("events: %v", err)
	}

	stop() // the first is shown without it
	text, err := run("stats", "-p")
	if err == nil || !strings.Contains(err.Error(), "node boat-2: ") || !strings.Contains(text, "first") {
		t.Errorf("without the second node: %v\n%s", err, text)
	}
	text, err = run("top", "-p", "--updates", "1")
	if err != nil || !strings.Contains(text, "not shown: node boat-2: ") || !strings.Contains(text, "first") {
		t.Errorf("without the second node: %v\n%s", err, text)
	}
}

// Regression: top ended when one node did not answer and the others ran nothing.
func TestTopOfIdleNodes(t *testing.T) {
	t.Setenv("CORACLE_ADDRESS", "")
	dir, err := os.MkdirTemp("", "c-") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	for _, dir := range []string{p.root, p.state, p.of(2, "boat-2").state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	remember(t, p, upOptions{Node: "boat", Port: 6443, Further: 1})
	stop := daemontest.Serve(t, p.socket(), daemontest.Runtime{Idle: true})
	top := func() (string, error) {
		cmd := command()
		cmd.SetArgs([]string{"--root", p.root, "--state", p.state, "top", "--updates", "1"})
		var out strings.Builder
		cmd.SetOut(&out)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	if text, err := top(); err != nil || !strings.Contains(text, "not shown: node boat-2: ") {
		t.Errorf("a node that runs nothing: %v\n%s", err, text)
	}
	stop()
	if _, err := top(); err == nil {
		t.Error("no node answers, and top goes on")
	}
}

// Regression: the completion of names looked at the default --state, whatever the last up with this
// --root had.
func TestCompletionAtARememberedPlace(t *testing.T) {
	t.Setenv("CORACLE_ADDRESS", "")
	dir, err := os.MkdirTemp("", "c-") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	for _, dir := range []string{p.root, p.state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	remember(t, p, upOptions{Node: "boat", Port: 6443, State: p.state})
	daemontest.Serve(t, p.socket(), daemontest.Runtime{Pod: "first"})
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
