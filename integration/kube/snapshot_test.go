package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A snapshot of a cluster that runs brings back what was deleted since, with pods and the
// credentials of then. A cluster that runs is not restored.
func TestSnapshot(t *testing.T) {
	c := newCluster(t)
	c.apply(t, webDeployment("web", 1))
	c.await(t, "rollout", "status", "deployment/web")
	uid := c.kube(t, "get", "deployment", "web", "-o", "jsonpath={.metadata.uid}")
	dir := t.TempDir()
	file, then := filepath.Join(dir, "snapshot"), filepath.Join(dir, "kubeconfig")
	if out := c.run(t, "snapshot", "save", file, "-o", "json"); !strings.Contains(out, `"node-name": "boat"`) {
		t.Errorf("save printed %s", out)
	}
	if info, err := os.Stat(file); err != nil {
		t.Fatal(err)
	} else if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	config, err := os.ReadFile(c.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(then, config, 0o600); err != nil {
		t.Fatal(err)
	}
	c.kube(t, "delete", "deployment", "web")
	if out, err := c.command("snapshot", "restore", file).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "nothing was changed: the cluster runs: 'coracle down") {
		t.Errorf("restoring a cluster that runs: %v, %s", err, out)
	}
	if _, err := c.tryKube("", "get", "deployment", "web"); err == nil {
		t.Error("the Deployment is there again")
	}
	c.run(t, "down")
	if out := c.run(t, "snapshot", "restore", file); !strings.Contains(out, "start it with: coracle up --root "+c.root) ||
		strings.Contains(out, "--node-name") {
		t.Errorf("restore printed %s", out)
	}
	c.up(t)
	if again := c.kube(t, "get", "deployment", "web", "-o", "jsonpath={.metadata.uid}"); again != uid {
		t.Errorf("the Deployment is %s, and was %s", again, uid)
	}
	c.await(t, "rollout", "status", "deployment/web")
	c.sameEverywhere(t)
	if out, err := c.tryKube("", "--kubeconfig", then, "get", "nodes"); err != nil {
		t.Errorf("with the kubeconfig of then: %v, %s", err, out)
	}
	if out := c.awaitWell(t); strings.Contains(out, "false") || !strings.Contains(out, "store") {
		t.Errorf("status after the restore:\n%s", out)
	}
}
