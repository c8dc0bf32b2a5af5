package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	cmd.SetOut(t.Output())
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

// joined is a machine whose agent runs under a supervisor. Its coracle-kube, a script, writes what
// it is asked and whether the supervisor runs then, and refuses what is named in the file refuse.
type joined struct {
	place
	dir        string
	supervisor *exec.Cmd
}

func newJoined(t *testing.T) joined {
	t.Helper()
	dir := t.TempDir()
	j := joined{place: place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}, dir: dir}
	for _, d := range []string{j.kubeRoot(), j.state} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	j.supervisor = exec.Command("/proc/self/exe", "sh", "-c", "echo runs; exec sleep 1000")
	j.supervisor.Env = append(os.Environ(), asSupervisor+"="+j.state)
	j.supervisor.Stderr = t.Output()
	out, err := j.supervisor.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := j.supervisor.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { _ = j.supervisor.Process.Signal(unix.SIGTERM); <-ended })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(ended); _ = j.supervisor.Wait() }()
	script := fmt.Sprintf("#!/bin/sh\ncd %s\nflock -n state/kube.lock true && runs=ended || runs=runs\n"+
		"echo \"$4 $runs\" >> asked\n[ \"$4\" != \"$(cat refuse)\" ] || { echo 'coracle-kube: refused' >&2; exit 1; }\n", dir)
	for name, content := range map[string]string{"coracle-kube": script, "refuse": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	remember(t, j.place, upOptions{
		Node: "two", Server: "https://192.0.2.1:7443", Bind: "127.0.0.1", Port: 7443, PodLogs: filepath.Join(dir, "pods"),
	})
	return j
}

// refuse has the cluster refuse what coracle-kube is asked.
func (j joined) refuse(t *testing.T, verb string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(j.dir, "refuse"), []byte(verb), 0o600); err != nil {
		t.Error(err)
	}
}

// leave leaves, and returns what coracle-kube was asked.
func (j joined) leave(t *testing.T, force bool) (asked string, err error) {
	t.Helper()
	alone(t, func() { err = leave(t.Context(), j.place, leaving{force: force, limit: time.Minute}, t.Output()) })
	data, rerr := os.ReadFile(filepath.Join(j.dir, "asked"))
	if rerr != nil {
		t.Error(rerr)
	}
	_ = os.Remove(filepath.Join(j.dir, "asked"))
	return strings.ReplaceAll(strings.TrimSpace(string(data)), "\n", ", "), err
}

// A join that was killed before it had a certificate is forgotten when the next one fails, and up
// starts no agent without a certificate.
func TestJoinAfterOneThatWasKilled(t *testing.T) {
	p := place{root: t.TempDir(), state: t.TempDir()}
	killed := upOptions{
		Server: "https://192.0.2.1:7443", Port: 7443, Bind: "127.0.0.1", ServiceCIDR: defaultServices, PodLogs: "/var/log/pods", CgroupRoot: "/c",
		timeout: time.Minute,
	}
	remember(t, p, killed)
	err := up(t.Context(), p, killed, func(string) bool { return false }, t.Output())
	if err == nil || !strings.Contains(err.Error(), "https://192.0.2.1:7443 was cut off: repeat 'coracle join'") {
		t.Errorf("up: %v", err)
	}
	if err := beforeJoin(p).restore(p); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p.settings()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a join that was killed is remembered: %v", err)
	}
	own := upOptions{Port: 8443, ServiceCIDR: defaultServices}
	remember(t, p, own)
	if last := beforeJoin(p); last.Port != 8443 {
		t.Errorf("what was before a join is %+v", last)
	}
}

// Regression: leave stopped the agent, with all pods evicted, and was told then that its Node may
// not be deleted.
func TestLeaveAsksFirst(t *testing.T) {
	j := newJoined(t)
	for _, c := range []struct{ refuse, asked, want string }{
		{"check", "check runs", "nothing was changed: refused; 'coracle leave --force"},
		{"drain", "check runs, drain runs", "may take no new pods until 'kubectl uncordon two': refused; 'coracle leave --force"},
	} {
		j.refuse(t, c.refuse)
		asked, err := j.leave(t, false)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || asked != c.asked {
			t.Errorf("refused to %s: asked %q, %v", c.refuse, asked, err)
		}
		if pid, err := holder(j.place.supervisor()); err != nil || pid != j.supervisor.Process.Pid {
			t.Errorf("the supervisor after a leave that was refused to %s: %d, %v", c.refuse, pid, err)
		}
	}
	j.refuse(t, "unregister")
	asked, err := j.leave(t, false)
	if err == nil || !strings.Contains(err.Error(), "the node has stopped: refused; 'coracle up") ||
		!strings.Contains(err.Error(), "starts it again, 'kubectl uncordon two' lets it take pods, and 'coracle leave --force") ||
		asked != "check runs, drain runs, unregister ended" {
		t.Errorf("refused to unregister: asked %q, %v", asked, err)
	}
	j.refuse(t, "")
	if asked, err := j.leave(t, false); err != nil || asked != "check ended, drain ended, unregister ended" {
		t.Errorf("asked %q, %v", asked, err)
	}
	if _, err := os.Stat(j.root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("--root after leave: %v", err)
	}
}

// Regression: a control-plane node with --etcd-servers was told that it has joined no cluster.
func TestLeaveWithEtcdElsewhere(t *testing.T) {
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	if err := os.MkdirAll(p.kubeRoot(), 0o700); err != nil {
		t.Fatal(err)
	}
	remember(t, p, upOptions{Node: "two", Etcd: []string{"https://192.0.2.1:2379"}})
	err := leave(t.Context(), p, leaving{}, t.Output())
	if err == nil || !strings.Contains(err.Error(), "down --purge") || !strings.Contains(err.Error(), "'coracle node remove two'") {
		t.Error(err)
	}
}

func TestLeaveByForce(t *testing.T) {
	j := newJoined(t)
	j.refuse(t, "drain")
	if asked, err := j.leave(t, true); err != nil || asked != "drain runs, unregister ended" {
		t.Errorf("asked %q, %v", asked, err)
	}
	if _, err := os.Stat(j.root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("--root after leave: %v", err)
	}
}

// The port and the address by which doctor calls a kubelet are those that the API server calls.
func TestKubeletOfANode(t *testing.T) {
	var n node
	const text = `{"status": {"addresses": [{"type": "Hostname", "address": "two"}, {"type": "InternalIP", "address": "fd00::2"}],
		"daemonEndpoints": {"kubeletEndpoint": {"Port": 10350}}}}`
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	if got := n.kubelet(); got != "[fd00::2]:10350" {
		t.Error(got)
	}
	if got := (&node{}).kubelet(); got != "" {
		t.Error(got)
	}
}
