package kube

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/testkit"
)

// What the API server holds survives down and up, and pods run again.
func TestDownAndUp(t *testing.T) {
	c := newCluster(t)
	c.apply(t, webDeployment("web", 2))
	c.await(t, "rollout", "status", "deployment/web")
	uid := c.kube(t, "get", "deployment", "web", "-o", "jsonpath={.metadata.uid}")
	c.run(t, "down")
	if _, err := c.tryKube("", "get", "nodes"); err == nil {
		t.Error("the API server still answers after down")
	}
	archives := t.TempDir()
	c.up(t, "--images", archives)
	if again := c.kube(t, "get", "deployment", "web", "-o", "jsonpath={.metadata.uid}"); again != uid {
		t.Errorf("the Deployment is %s, and was %s", again, uid)
	}
	c.await(t, "wait", "pods", "-l", "app=web", "--for=condition=Ready")
	c.await(t, "rollout", "status", "deployment/web")
	if out := c.awaitWell(t); strings.Contains(out, "false") {
		t.Errorf("after up not all is well:\n%s", out)
	}
	c.checkArchives(t, archives)
}

// checkArchives has up load archives of images from dir: new ones, and those whose images are gone.
func (c *cluster) checkArchives(t *testing.T, dir string) {
	t.Helper()
	const name = "local.test/oar:1"
	good, bad := filepath.Join(dir, "oar.tar"), filepath.Join(dir, "bad.tar")
	files := filepath.Join(t.TempDir(), "files.tar")
	if err := os.WriteFile(files, make([]byte, 1024), 0o600); err != nil { // the end of an archive
		t.Fatal(err)
	}
	c.run(t, "image", "import", "-f", files, name)
	c.run(t, "image", "save", "-f", good, name)
	for _, step := range []struct {
		what   string
		before func()
		loads  bool
	}{
		{"a new archive", func() { c.run(t, "image", "remove", name) }, true},
		{"an archive that is known", func() {}, false},
		{"an archive whose image is gone", func() { c.run(t, "image", "remove", name) }, true},
	} {
		step.before()
		if out := c.up(t); strings.Contains(out, good+": its images are loaded") != step.loads {
			t.Errorf("%s: up says %s", step.what, out)
		}
		if out := c.run(t, "image", "list"); !strings.Contains(out, "local.test/oar") {
			t.Errorf("%s: images %s", step.what, out)
		}
	}
	// One that is no archive does not keep the cluster from starting.
	if err := os.WriteFile(bad, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := c.up(t); !strings.Contains(out, bad+": ") {
		t.Errorf("up says nothing of a bad archive: %s", out)
	}
	if out, err := c.command("status").CombinedOutput(); err == nil || !strings.Contains(string(out), bad+" was not loaded: ") {
		t.Errorf("status with a bad archive: %v, %s", err, out)
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	c.awaitWell(t)
}

// kill -9 of the cluster process and of coracled disturbs no pod, and a Deployment that rolls goes
// on to its end, with no pod lost or doubled.
func TestKillWhileRolling(t *testing.T) {
	c := newCluster(t)
	c.apply(t, webDeployment("steady", 1)+"---\n"+webDeployment("web", 4))
	c.await(t, "rollout", "status", "deployment/steady")
	c.await(t, "rollout", "status", "deployment/web")
	const started = "jsonpath={.items[0].status.containerStatuses[0].containerID} " +
		"{.items[0].status.containerStatuses[0].state.running.startedAt}"
	before := c.kube(t, "get", "pods", "-l", "app=steady", "-o", started)
	for round := range 3 {
		c.kube(t, "set", "env", "deployment/web", fmt.Sprintf("ROUND=%d", round))
		for _, name := range []string{"coracle-kube", "coracled"} {
			if err := testkit.Kill(c.process(t, name)); err != nil {
				t.Fatal(err)
			}
		}
		c.up(t) // waits until all answer again
		c.await(t, "rollout", "status", "deployment/web")
	}
	c.await(t, "wait", "deployment/web", "--for=jsonpath={.status.replicas}=4")
	if after := c.kube(t, "get", "pods", "-l", "app=steady", "-o", started); after != before {
		t.Errorf("the steady pod's container is %s, and was %s", after, before)
	}
	c.sameEverywhere(t)
}

// sameEverywhere waits until CRI runs what the API server says, no more and no less. Pods that a
// rollout has replaced may still be on their way out when it is done, and no command waits for the
// end of those only.
func (c *cluster) sameEverywhere(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		pods := strings.Fields(c.kube(t, "get", "pods", "-A", "-o", "jsonpath={.items[*].metadata.uid}"))
		running := c.sandboxes(t)
		slices.Sort(pods)
		slices.Sort(running)
		if slices.Equal(pods, running) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the API server has pods %v, the runtime runs %v", pods, running)
		}
	}
}

// sandboxes are the UIDs of the pods that the runtime runs.
func (c *cluster) sandboxes(t *testing.T) []string {
	t.Helper()
	var list struct {
		Items []struct {
			Metadata struct {
				UID string `json:"uid"`
			} `json:"metadata"`
		} `json:"items"`
	}
	if err := json.Unmarshal([]byte(c.crictl(t, "pods", "--state", "ready", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	var uids []string
	for _, pod := range list.Items {
		uids = append(uids, pod.Metadata.UID)
	}
	return uids
}

func (c *cluster) apply(t *testing.T, manifest string) {
	t.Helper()
	if out, err := c.tryKube(manifest, "apply", "-f", "-"); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

func webDeployment(name string, replicas int) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: "%[3]s/demo/web:1"}]
`, name, replicas, registry.Addr)
}

// process finds the one process of this cluster that runs a program of ours.
func (c *cluster) process(t *testing.T, name string) int {
	t.Helper()
	exe := testkit.Bin(t, name)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if to, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe")); err == nil && to == exe {
			return pid
		}
	}
	t.Fatalf("no process runs %s", exe)
	return 0
}
