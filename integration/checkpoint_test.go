package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// counter is a container that counts, and writes down how far it is.
func counter() *cri.ContainerConfig {
	return shell("main", `i=0; while :; do i=$((i+1)); echo $i > /count; echo line $i; usleep 50000; done`)
}

// Where criu(8) is missing or does not know the kernel, a checkpoint fails with its name, and
// the container goes on; where it works, the container does, too, and its copy from where it was.
func TestCheckpointAndRestore(t *testing.T) {
	testkit.NoCRIU() // before anything starts: shims have to see it
	n := newNode(t, testkit.Options{Config: "[runtime]\nrestore = true\n"})
	n.pull("busybox")
	n.warm()
	n.pull("busybox")
	checkpointAndRestore(t, n) // what is opened once for all is no leak
	check := n.noLeaks()
	checkpointAndRestore(t, n)
	if why := testkit.NoCRIU(); why != "" {
		testkit.Untested(t, "checkpoints that succeed, and restoring pods: %s (make test-vm VM_PARTS=integration tests them)", why)
	}
	if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: testRef("busybox")}}); err != nil {
		t.Fatal(err)
	}
	check()
}

func checkpointAndRestore(t *testing.T, n *node) {
	t.Helper()
	p := n.runPod(nil)
	c := p.run(counter())
	eventually(t, "the container counts", func() bool { return strings.Contains(c.output(""), "line 3\n") })
	dir := t.TempDir()
	archive := filepath.Join(dir, "saved.tar")
	_, err := n.CheckpointContainer(n.ctx(), &cri.CheckpointContainerRequest{ContainerId: c.id, Location: archive})
	works := testkit.NoCRIU() == ""
	if works != (err == nil) || err != nil && !strings.Contains(err.Error(), "criu") {
		t.Errorf("criu works: %t; checkpoint: %v", works, err)
	}
	if _, serr := os.Stat(archive); works != (serr == nil) {
		t.Errorf("archive: %v", serr)
	}
	said := len(c.output(""))
	eventually(t, "the container goes on", func() bool { return len(c.output("")) > said })
	pods := filepath.Join(dir, "pod")
	if err := os.Mkdir(pods, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = n.CheckpointPod(n.ctx(), &cri.CheckpointPodRequest{PodSandboxId: p.id, OutputPath: pods, ContainerIds: []string{c.id}})
	if works != (err == nil) {
		t.Errorf("criu works: %t; checkpoint of the pod: %v", works, err)
	}
	if works {
		restorePod(t, n, p, pods)
	} else if left, err := os.ReadDir(pods); err != nil || len(left) != 0 {
		t.Errorf("left of a failed checkpoint: %v, %v", left, err)
	}
	p.remove()
}

// restorePod restores a pod alongside the one that was saved.
func restorePod(t *testing.T, n *node, saved *pod, dir string) {
	t.Helper()
	config := n.podConfig()
	r, err := n.RestorePod(n.ctx(),
		&cri.RestorePodRequest{CheckpointPath: dir, Config: config, ContainerConfigs: []*cri.ContainerConfig{counter()}})
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{n, r.GetPodSandboxId(), config}
	c := &container{p, r.GetRestoredContainers()[0].GetContainerId(), filepath.Join(config.LogDirectory, "main.log")}
	if s := c.status(); s.GetState() != cri.ContainerState_CONTAINER_CREATED {
		t.Errorf("restored container is %s before its start", s.GetState())
	}
	c.start()
	eventually(t, "the restored container counts", func() bool { return strings.Count(c.output(""), "\n") > 2 })
	var first, file int
	if _, err := fmt.Sscanf(c.output(""), "line %d", &first); err != nil || first < 4 {
		t.Errorf("it begins with %.20q: %v", c.output(""), err)
	}
	// Its files are those of the moment, and it is in the new pod.
	out, _ := c.exec("sh", "-c", "cat /count; hostname")
	if _, err := fmt.Sscan(out, &file); err != nil || file < first {
		t.Errorf("its file says %q, its log began with %d", out, first)
	}
	if !strings.Contains(out, config.Hostname) {
		t.Errorf("it is not in the pod %s: %q", config.Hostname, out)
	}
	if net, _ := c.exec("ip", "-4", "addr", "show", "eth0"); !strings.Contains(net, p.status().GetNetwork().GetIp()) {
		t.Errorf("it has the network %q, its pod %s", net, p.status().GetNetwork().GetIp())
	}
	p.remove()
}

// Restoring is off unless the operator says otherwise.
func TestRestoreIsOff(t *testing.T) {
	n := newNode(t, testkit.Options{})
	_, err := n.RestorePod(n.ctx(), &cri.RestorePodRequest{
		CheckpointPath: t.TempDir(), Config: n.podConfig(), ContainerConfigs: []*cri.ContainerConfig{counter()},
	})
	wantCode(t, "RestorePod", err, "FailedPrecondition")
}
