package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
)

// An up that fails ends what it has started. Regression: it purged each coracled that had not
// answered within two seconds, and ended the pods of a cluster that ran.
func TestUpThatFails(t *testing.T) {
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	coracle := withDoubles(t)
	for name, test := range map[string]struct {
		before func(t *testing.T, p place) // what is there before
		mode   string
		// hung is whether up fails because coracled never answers.
		hung bool
		// purged is whether pods end, runs whether a coracled runs afterwards.
		purged, runs bool
		want         upOptions
	}{
		"nothing ran": {purged: true, want: upOptions{Coracled: true}},
		"a coracled of systemd hangs": {
			before: func(t *testing.T, p place) { startCoracled(t, coracle, p, hung) },
			hung:   true, runs: true,
		},
		"an earlier up's coracled hangs": {
			before: func(t *testing.T, p place) {
				startCoracled(t, coracle, p, hung)
				remember(t, p, upOptions{Port: 7443, Coracled: true, Boot: boot})
			},
			hung: true, runs: true, want: upOptions{Port: 7443, Coracled: true, Boot: boot},
		},
		"an earlier up's coracled runs": {
			before: func(t *testing.T, p place) {
				startCoracled(t, coracle, p, "")
				remember(t, p, upOptions{Port: 7443, Coracled: true, Boot: boot})
			},
			runs: true, want: upOptions{Port: 7443, Coracled: true, Boot: boot},
		},
		"systemd is quicker to start coracled": {mode: late, runs: true},
		"a coracled has died, its pods run": {
			before: func(t *testing.T, p place) {
				if err := os.Mkdir(filepath.Join(p.state, "pods"), 0o700); err != nil {
					t.Fatal(err)
				}
			},
		},
		"the cluster runs, coracled has died": {
			before: func(t *testing.T, p place) {
				lock, err := hold(p.supervisor())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = lock.Close() })
				remember(t, p, upOptions{Port: 6443, CgroupRoot: "/coracle-test-none"})
			},
			runs: true, want: upOptions{Port: 6443, Coracled: true, Boot: boot},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := place{root: t.TempDir(), state: t.TempDir()}
			t.Cleanup(func() {
				for _, r := range processesOf(p) {
					_ = unix.Kill(r.PID, unix.SIGKILL)
				}
			})
			if test.before != nil {
				test.before(t, p)
			}
			args := []string{"up", "--root", p.root, "--state", p.state, "--timeout", "200ms"}
			if !test.hung {
				args = append(args, "--timeout", "5m", "--cgroup-root", "/coracle-test-none") // the test says when it ends
			}
			cmd := exec.Command(coracle, args...)
			cmd.Env = append(os.Environ(), asCoracled+"="+test.mode)
			var said bytes.Buffer
			cmd.Stderr = &said
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			served := lines.Scan() && strings.Contains(lines.Text(), "coracled serves")
			if served == test.hung {
				t.Errorf("coracled served: %t; %s", served, lines.Text())
			}
			if served {
				if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
					t.Error(err)
				}
			}
			if err := cmd.Wait(); err == nil {
				t.Error("up did not fail")
			}
			if test.hung {
				pid, err := holder(p.runtime())
				if want := fmt.Sprintf("coracled with pid %d, which ran before, does not answer", pid); err != nil ||
					!strings.Contains(said.String(), want) {
					t.Errorf("%s, want %q, %v", said.String(), want, err)
				}
			}
			if _, err := os.Stat(purged(p)); (err == nil) != test.purged {
				t.Errorf("purged: %v, want %t; up said %s", err, test.purged, said.String())
			}
			if pid, err := holder(p.runtime()); err != nil || (pid != 0) != test.runs {
				t.Errorf("coracled has pid %d afterwards, %v; runs: want %t", pid, err, test.runs)
			}
			// The supervisor may not have had its lock when up failed.
			if all := processesOf(p); len(all) != 0 && !test.runs || len(all) > 1 {
				t.Errorf("these run afterwards: %v", all)
			}
			if got := remembered(p); got.Port != test.want.Port || got.Coracled != test.want.Coracled || got.Boot != test.want.Boot {
				t.Errorf("remembered: %+v, want %+v", got, test.want)
			}
		})
	}
}

func remember(t *testing.T, p place, o upOptions) {
	t.Helper()
	if err := o.remember(p); err != nil {
		t.Fatal(err)
	}
}

// processesOf are the processes whose arguments name a place.
func processesOf(p place) (all []testkit.Process) { return processesWith(p.state) }

// processesWith are the processes with an argument that contains text.
func processesWith(text string) (all []testkit.Process) {
	return slices.DeleteFunc(testkit.Processes(), func(r testkit.Process) bool { return !strings.Contains(r.Line(), text) })
}

// Neither needs the other to start, so up starts both at once. An up that fails meanwhile ends
// both.
func TestClusterStartsWhileCoracledDoes(t *testing.T) {
	coracle := withDoubles(t)
	p := place{root: t.TempDir(), state: t.TempDir()}
	t.Cleanup(func() {
		for _, r := range processesOf(p) {
			_ = unix.Kill(r.PID, unix.SIGKILL)
		}
	})
	fifo := filepath.Join(t.TempDir(), "started")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(coracle, "up", "--root", p.root, "--state", p.state, "--timeout", "1m", "--cgroup-root", "/coracle-test-none")
	cmd.Env = append(os.Environ(), asCoracled+"="+second, startedFIFO+"="+fifo)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if lines := bufio.NewScanner(out); !lines.Scan() || !strings.Contains(lines.Text(), "coracled serves") {
		t.Errorf("coracled does not serve before the cluster process does: %s", lines.Text())
	}
	_ = cmd.Process.Signal(unix.SIGTERM)
	if err := cmd.Wait(); err == nil {
		t.Error("up did not fail")
	}
	if all := processesOf(p); len(all) != 0 {
		t.Errorf("these run afterwards: %v", all)
	}
}

// Regression: an up that failed ended the member of etcd, which may have a vote: of two
// control-plane nodes, the other one had no quorum then.
func TestUpThatFailsKeepsTheQuorum(t *testing.T) {
	coracle := withDoubles(t)
	p := place{root: t.TempDir(), state: t.TempDir()}
	t.Cleanup(func() {
		for _, r := range processesOf(p) {
			_ = unix.Kill(r.PID, unix.SIGKILL)
		}
	})
	makeSeveral(t, p)
	cmd := exec.Command(coracle, "up", "--root", p.root, "--state", p.state, "--timeout", "1m", "--cgroup-root", "/coracle-test-none")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if lines := bufio.NewScanner(out); !lines.Scan() || !strings.Contains(lines.Text(), "coracled serves") {
		t.Errorf("up said %s", lines.Text())
	}
	_ = cmd.Process.Signal(unix.SIGTERM)
	if err := cmd.Wait(); err == nil || !strings.Contains(said.String(), "the cluster process goes on") {
		t.Errorf("up: %v, %s", err, said.String())
	}
	var runs []string
	for _, r := range processesOf(p) {
		runs = append(runs, r.Line())
	}
	if all := strings.Join(runs, "\n"); !strings.Contains(all, " supervise ") || !strings.Contains(all, "coracled ") {
		t.Errorf("these run afterwards: %s", all)
	}
	if got := remembered(p); !got.Coracled || got.Port != 6443 {
		t.Errorf("remembered: %+v", got)
	}
}

// Regression: an up --force-new-cluster that failed before the cluster was started left the order
// for the next up.
func TestForceThatFails(t *testing.T) {
	coracle := withDoubles(t)
	p := place{root: t.TempDir(), state: t.TempDir()}
	peers, config := filepath.Join(p.kubeRoot(), "etcd", "peers.json"), filepath.Join(t.TempDir(), "silent.toml")
	if err := os.MkdirAll(filepath.Dir(peers), 0o700); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{peers: "{}", config: ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	said, err := exec.Command(coracle, "up", "--force-new-cluster", "--root", p.root, "--state", p.state, "--runtime-config", config,
		"--timeout", "5m").CombinedOutput()
	if err == nil || !strings.Contains(string(said), "coracled, which checks flags") {
		t.Errorf("%v, %s", err, said)
	}
	all, err := os.ReadFile(asked(p))
	lines := strings.Split(strings.TrimSpace(string(all)), "\n")
	if err != nil || len(lines) != 2 || !strings.Contains(lines[1], "force --undo") {
		t.Errorf("coracle-kube was asked %s, %v", all, err)
	}
}

// Regression: a check that said nothing, or had not ended in time, left the error "up: ".
func TestChecksThatSayNothing(t *testing.T) {
	coracle := withDoubles(t)
	for name, test := range map[string]struct{ timeout, want string }{
		"silent.toml": {"5m", "coracle: up: coracled, which checks flags: exit status 3\n"},
		"slow.toml":   {"1s", "coracle: up: coracled, which checks flags, has not ended: context deadline exceeded\n"},
	} {
		p := place{root: t.TempDir(), state: t.TempDir()}
		config := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(config, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		said, err := exec.Command(coracle, "up", "--root", p.root, "--state", p.state, "--runtime-config", config, "--timeout",
			test.timeout).CombinedOutput()
		if err == nil || string(said) != test.want {
			t.Errorf("%v, %q, want %q", err, said, test.want)
		}
		if all := processesOf(p); len(all) != 0 { // such as a cluster process that waits for the other checks
			t.Errorf("%s: these run afterwards: %v", name, all)
		}
	}
}

// The cluster process is started to check its flags, and goes on if they are good. Nothing else is
// started before, and nothing is left if they are not.
func TestFlagsAreCheckedFirst(t *testing.T) {
	coracle := withDoubles(t)
	for flag, want := range map[string]string{
		refuses: "coracle: up: --eviction-hard refuses is wrong\n",
		// One that has no gate, or was killed, is asked as before.
		silent:   "coracle: up: --eviction-hard silent is wrong\n",
		gateless: "coracle: up: --eviction-hard gateless is wrong\n",
	} {
		p := place{root: t.TempDir(), state: t.TempDir()}
		for _, several := range []bool{false, true} { // which is no reason to leave it running
			if several {
				makeSeveral(t, p)
			}
			said, err := exec.Command(coracle, "up", "--root", p.root, "--state", p.state, "--eviction-hard", flag).CombinedOutput()
			if err == nil || string(said) != want {
				t.Errorf("%s: %v, %q, want %q", flag, err, said, want)
			}
			if all := processesOf(p); len(all) != 0 {
				t.Errorf("%s: these run afterwards: %v", flag, all)
			}
			if _, err := os.Stat(p.runtime()); err == nil {
				t.Errorf("%s: coracled was started", flag)
			}
			if got := remembered(p); got.EvictionHard != "" {
				t.Errorf("%s is remembered", flag)
			}
			if _, err := os.Stat(p.logs()); err == nil && flag == refuses {
				t.Errorf("%s: there are logs", flag)
			}
		}
	}
}

// Regression: a cluster process that waited while images were loaded counted as one that had
// worked, so its supervisor started it again and again when it failed afterwards.
func TestNothingWaitsWhileImagesAreLoaded(t *testing.T) {
	coracle := withDoubles(t)
	p := place{root: t.TempDir(), state: t.TempDir()}
	images := t.TempDir()
	if err := os.WriteFile(filepath.Join(images, "app.tar"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// The double refuses these flags only at a gate, and the double of coracled loads no images.
	said, err := exec.Command(coracle, "up", "--root", p.root, "--state", p.state, "--cgroup-root", "/coracle-test-none", "--images", images,
		"--eviction-hard", refuses).CombinedOutput()
	if err == nil || !strings.Contains(string(said), "up: --images "+images) {
		t.Errorf("%v, %q", err, said)
	}
	if all := processesOf(p); len(all) != 0 {
		t.Errorf("these run afterwards: %v", all)
	}
}

// makeSeveral has the place look like one of several control-plane nodes.
func makeSeveral(t *testing.T, p place) {
	t.Helper()
	peers := filepath.Join(p.kubeRoot(), "etcd", "peers.json")
	if err := os.MkdirAll(filepath.Dir(peers), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(peers, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// An up that is killed while the cluster process waits leaves nothing that runs.
func TestGateOfAnUpThatIsKilled(t *testing.T) {
	coracle := withDoubles(t)
	p := place{root: t.TempDir(), state: t.TempDir()}
	config := filepath.Join(t.TempDir(), "slow.toml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(coracle, "up", "--root", p.root, "--state", p.state, "--runtime-config", config)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	of := func(program string) (pid int) {
		for _, r := range processesOf(p) {
			if r.Program() == program {
				return r.PID
			}
		}
		return 0
	}
	for end := time.Now().Add(time.Minute); of("coracle-kube") == 0; {
		if time.Now().After(end) {
			t.Fatal("the cluster process is not started")
		}
	}
	supervisor, err := holder(p.supervisor())
	if err != nil || supervisor == 0 {
		t.Fatalf("supervisor %d, %v", supervisor, err)
	}
	ended, err := unix.PidfdOpen(supervisor, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ended)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(ended), Events: unix.POLLIN}}, 60_000); n != 1 || err != nil {
		t.Errorf("the supervisor has not ended: %v", err)
	}
	if pid := of("coracle-kube"); pid != 0 {
		t.Errorf("the cluster process runs")
	}
	for _, r := range processesWith(config) { // its check hangs
		_ = unix.Kill(r.PID, unix.SIGKILL)
	}
}
