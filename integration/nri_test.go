package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// nriNode is a node with the test's plugin installed, and the plugin's journal.
func nriNode(t *testing.T) (n *node, socket, journal string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri-") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	plugins, conf := filepath.Join(dir, "plugins"), filepath.Join(dir, "conf")
	for _, d := range []string{plugins, conf} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(testkit.Bin(t, "test", "nriplugin"), filepath.Join(plugins, "10-boat")); err != nil {
		t.Fatal(err)
	}
	journal, socket = filepath.Join(dir, "journal"), filepath.Join(dir, "nri.sock")
	writeFile(t, filepath.Join(conf, "10-boat.conf"), journal)
	n = newNode(t, testkit.Options{Config: fmt.Sprintf("[nri]\nenabled = true\nsocket = %q\nplugin_dir = %q\nplugin_config_dir = %q\n", socket,
		plugins, conf)})
	return n, socket, journal
}

// TestNRI: a plugin sees a pod's life from its beginning to its end, and what it changes is so.
func TestNRI(t *testing.T) {
	n, _, journal := nriNode(t)
	n.pull("busybox")
	p := n.runPod(nil)
	conf := shell("main", trap+"echo $BOAT; ulimit -n; grep -q Linux /boat && echo mounted; "+forever)
	conf.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20}
	c := p.run(conf)
	eventually(t, "the container logs", func() bool { return strings.Count(c.output(""), "\n") == 3 })
	if got := c.output("stdout"); got != "coracle\n77\nmounted\n" {
		t.Errorf("the container says %q", got)
	}
	limit := func() int64 {
		r, err := n.ContainerStats(n.ctx(), &cri.ContainerStatsRequest{ContainerId: c.id})
		if err != nil {
			t.Fatal(err)
		}
		m := r.GetStats().GetMemory()
		return int64(m.GetAvailableBytes().GetValue() + m.GetWorkingSetBytes().GetValue())
	}
	if got := limit(); got != 48<<20 {
		t.Errorf("memory limit %d, want the plugin's", got)
	}
	if _, err := n.UpdateContainerResources(n.ctx(), &cri.UpdateContainerResourcesRequest{
		ContainerId: c.id, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20},
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the limit is twice that of the update", func() bool { return limit() == 128<<20 })

	refused := shell("refused", "true")
	refused.Annotations = map[string]string{"boat.refused": "yes"}
	if _, err := n.CreateContainer(n.ctx(), &cri.CreateContainerRequest{
		PodSandboxId: p.id, Config: refused,
		SandboxConfig: p.config,
	}); err == nil || !strings.Contains(err.Error(), "no such boat here") {
		t.Errorf("create of a container that the plugin refuses: %v", err)
	}
	updatePod := func(limit int64) error {
		_, err := n.UpdatePodSandboxResources(n.ctx(), &cri.UpdatePodSandboxResourcesRequest{
			PodSandboxId: p.id, Overhead: &cri.LinuxContainerResources{MemoryLimitInBytes: 5},
			Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: limit},
		})
		return err
	}
	if err := updatePod(6); err != nil {
		t.Error(err)
	}
	if err := updatePod(77); err == nil || !strings.Contains(err.Error(), "too small for a boat") {
		t.Errorf("update of a pod that the plugin refuses: %v", err)
	}
	c.stop()
	name := p.config.Metadata.Name
	want := []string{
		"configure [coracle]", "synchronize [0 0]", "run [" + name + "]", "create [" + name + " main]", "created [main]", "start [main]",
		"started [main]",
		"update [main]", "updated [main]", "update pod [" + name + " 5 6]", "updated pod [" + name + " 6]", "stopped [main 0]", "removed [main]",
		"stop [" + name + "]", "remove [" + name + "]",
	}
	lines := func() []string {
		b, _ := os.ReadFile(journal)
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
	eventually(t, "the end is told", func() bool { return len(lines()) == 12 })
	c.remove()
	p.remove()
	if got := strings.Join(lines(), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("the plugin was told\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// TestNRIPluginConnects: one that comes later is told what there is; when it dies nothing waits for
// it, and a coracled that was killed starts its plugins again.
func TestNRIPluginConnects(t *testing.T) {
	n, socket, journal := nriNode(t)
	n.pull("busybox")
	p := n.runPod(nil)
	p.run(shell("main", forever))
	late := filepath.Join(filepath.Dir(journal), "late")
	cmd := exec.Command(testkit.Bin(t, "test", "nriplugin"), "-late", late, "-socket", socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is told of the pod", func() bool {
		b, _ := os.ReadFile(late)
		return strings.Contains(string(b), "synchronize [1 1]")
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	p.run(shell("second", forever))
	killDaemon(n)
	n.ready()
	eventually(t, "the plugin is started again", func() bool {
		b, _ := os.ReadFile(journal)
		return strings.Contains(string(b), "synchronize [1 2]")
	})
	p.run(shell("third", forever))
	p.remove()
}
