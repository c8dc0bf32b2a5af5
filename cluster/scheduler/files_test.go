package scheduler_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/coracle-project/coracle/cluster/scheduler/config"
)

// Pods with claims are scheduled by a profile that asks VolumeBinding only from preFilter on.
func TestVolumesWithoutPreEnqueue(t *testing.T) {
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- plugins:\n"
	only := func(names string) string { return "{enabled: [" + names + "]}" }
	for name, plugins := range map[string]string{
		"preEnqueue is disabled": `    preEnqueue: {disabled: [{name: "*"}]}` + "\n",
		"multiPoint is disabled": `    multiPoint: {disabled: [{name: "*"}]}` + "\n" +
			"    queueSort: " + only("{name: PrioritySort}") + "\n" +
			"    preFilter: " + only("{name: NodeResourcesFit}, {name: VolumeBinding}") + "\n" +
			"    filter: " + only("{name: NodeResourcesFit}, {name: VolumeBinding}") + "\n" +
			"    reserve: " + only("{name: VolumeBinding}") + "\n" +
			"    preBind: " + only("{name: VolumeBinding}") + "\n" +
			"    bind: " + only("{name: DefaultBinder}") + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "scheduler.yaml")
			if err := os.WriteFile(path, []byte(head+plugins), 0o600); err != nil {
				t.Fatal(err)
			}
			opts, err := config.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				c := start(t, opts, node("a", "1"), node("b", "4"), later("example.org/later"), claim("data"))
				defer c.stop()
				c.versioned()
				c.create(claiming(pod("p", "2"), "data"))
				c.selected("data", "b")
				c.provision("data", "b")
				c.on("p", "b")
			})
		})
	}
}

// An extended resource that is the devices of a DeviceClass is not there for pods of a profile that
// does not allocate devices: they would start without any.
func TestExtendedResourceInAProfileWithoutDevices(t *testing.T) {
	const gpu = "example.org/gpu"
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: " +
		"default-scheduler\n- schedulerName: plain\n  plugins:\n"
	for name, plugins := range map[string]string{
		"disabled":            `    multiPoint: {disabled: [{name: DynamicResources}]}` + "\n",
		"disabled at preBind": `    preBind: {disabled: [{name: DynamicResources}]}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "scheduler.yaml")
			if err := os.WriteFile(path, []byte(head+plugins), 0o600); err != nil {
				t.Fatal(err)
			}
			opts, err := config.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				c := start(t, opts, node("a", "16"), gpusAs(gpu), slice("a", 8, 8))
				defer c.stop()
				c.versioned()
				c.named()
				c.create(asking("p", gpu, "1"))
				pause()
				c.on("p", "a")
				for len(c.events) > 0 {
					<-c.events
				}
				plain := asking("q", gpu, "1")
				plain.Spec.SchedulerName = "plain"
				c.create(plain)
				c.on("q", "")
				if got, want := c.event(), "1 Insufficient "+gpu; !strings.Contains(got, want) {
					t.Errorf("event is %q, not of %q", got, want)
				}
			})
		})
	}
}
