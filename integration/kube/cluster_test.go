package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/testkit"
)

// patience bounds what a test waits for, on however slow a machine; it is never the time that a
// test takes. Scripts spell it out.
const patience = 5 * time.Minute

// cluster is what one `coracle up` started.
type cluster struct {
	root, state string
	coracle     string // the command
	kubectl     string
	cgroup      string // parent of all its cgroups
}

// newCluster starts a cluster that is taken down with the test, which fails if that leaves
// anything.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := planCluster(t)
	c.start(t)
	return c
}

// planCluster is a cluster that does not run yet.
func planCluster(t *testing.T) *cluster {
	t.Helper()
	// Not t.TempDir: socket paths have to be short.
	dir, err := os.MkdirTemp("", "kube-")
	if err != nil {
		t.Fatal(err)
	}
	// The built-in network, and the registry, which is on a loopback address.
	config := fmt.Sprintf("[network]\ncni_conf_dir = %q\ncni_bin_dirs = [%q]\n[image.registry.%q]\nplain_http = true\n",
		filepath.Join(dir, "cni"), testkit.Bin(t, "tools", "cni"), registry.Addr)
	if err := os.WriteFile(filepath.Join(dir, "coracled.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state"),
		coracle: testkit.Bin(t, "coracle"), kubectl: testkit.Bin(t, "tools", "kubectl"),
		cgroup: "/coracle-" + filepath.Base(dir), // cgroups are the whole machine's: other tests have theirs next to it
	}
	before := findTraces(t, c.cgroup)
	t.Cleanup(func() {
		if t.Failed() {
			c.showLogs(t)
		}
		c.run(t, "down", "--purge")
		for _, dir := range []string{c.root, c.state} {
			if left, err := os.ReadDir(dir); err == nil {
				t.Errorf("down has left in %s: %v", dir, left)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		if left := findTraces(t, c.cgroup).since(before).all(); len(left) > 0 {
			t.Errorf("down has left %v", left)
		}
	})
	return c
}

// start starts a cluster for the first time.
func (c *cluster) start(t *testing.T) {
	t.Helper()
	c.up(t)
	c.await(t, "wait", "serviceaccount/default", "--for=create") // pods of no controller are refused without it
}

// awaitWell waits until all parts of the cluster are well, and returns what status says then.
func (c *cluster) awaitWell(t *testing.T) string {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		out, err := c.command("status").CombinedOutput()
		if err == nil {
			return string(out)
		}
		if time.Now().After(end) {
			t.Fatalf("not all is well: %v\n%s", err, out)
		}
	}
}

// up is `coracle up` with the settings of this cluster.
func (c *cluster) up(t *testing.T, args ...string) string {
	t.Helper()
	return c.run(t, append(c.upArgs(), args...)...)
}

func (c *cluster) upArgs() []string {
	return []string{
		"up", "--node-name", "boat", "--node-ip", "127.0.0.1", "--runtime-config", filepath.Join(filepath.Dir(c.root), "coracled.toml"),
		"--cgroup-root", c.cgroup, "--pod-log-dir", filepath.Join(c.root, "logs", "pods"), "--timeout", patience.String(),
		"--eviction-hard", "memory.available<0%", // nothing is watched: how much room the machine has is not the tests' business
	}
}

// run runs the command with the cluster's directories and returns what it printed.
func (c *cluster) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.command(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("coracle %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// command is the command with the cluster's directories.
func (c *cluster) command(args ...string) *exec.Cmd {
	cmd := exec.Command(c.coracle, append(args, "--root", c.root, "--state", c.state)...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(c.kubectl)+":"+os.Getenv("PATH"))
	return cmd
}

// kubeconfig is the administrator's.
func (c *cluster) kubeconfig() string { return filepath.Join(c.root, "kubeconfig") }

// kube runs kubectl and returns what it printed.
func (c *cluster) kube(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.tryKube("", args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// await runs kubectl wait or rollout status.
func (c *cluster) await(t *testing.T, args ...string) {
	t.Helper()
	c.kube(t, append(args, "--timeout", patience.String())...)
}

func (c *cluster) tryKube(stdin string, args ...string) (string, error) {
	cmd := exec.Command(c.kubectl, append([]string{"--kubeconfig", c.kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) showLogs(t *testing.T) {
	for _, name := range []string{"kube.log", "coracled.log"} {
		data, err := os.ReadFile(filepath.Join(c.root, "logs", name))
		if err != nil {
			t.Log(err)
			continue
		}
		t.Logf("%s ends with:\n%s", name, data[max(len(data)-16<<10, 0):])
	}
}

// crictl runs the real crictl against the cluster's coracled.
func (c *cluster) crictl(t *testing.T, args ...string) string {
	t.Helper()
	socket := "unix://" + filepath.Join(c.state, "coracle.sock")
	cmd := exec.Command(testkit.Bin(t, "tools", "crictl"), append([]string{"-r", socket, "-i", socket}, args...)...)
	out, err := cmd.Output() // a warning about its configuration goes to standard error
	if err != nil {
		t.Fatalf("crictl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
