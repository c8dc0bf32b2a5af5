//go:build kubelet

package integration

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

var churnPods = flag.Int("churn", 1000, "how many pods TestKubeletChurn has the kubelet run")

const (
	// churnWave is how many pods come at once, while as many go.
	churnWave      = 100
	metricsAddress = "127.0.0.1:9477"
	// rssSlack is what the heap of a Go program may grow by, that has had so much to do at once.
	rssSlack = 64 << 20
)

// churnKinds are the pods of the churn, and how each shows that it has been through what it is for.
var churnKinds = []struct{ spec, path, want string }{
	{
		`containers: [{name: main, image: "$IMAGE", command: [sleep, "10000"], volumeMounts: [{name: v, mountPath: /v}],
      lifecycle: {postStart: {exec: {command: [touch, /v/x]}}, preStop: {exec: {command: [rm, /v/x]}}}}]
  volumes: [{name: v, emptyDir: {}}]`, "status.containerStatuses.0.ready", "^true$",
	},
	{
		`initContainers: [{name: one, image: "$IMAGE", command: ["true"]}, {name: two, image: "$IMAGE", command: ["true"]}]
  containers: [{name: main, image: "$IMAGE", command: [sleep, "10000"], readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 30}}]`,
		"status.containerStatuses.0.ready", "^true$",
	},
	{
		`restartPolicy: Never
  containers: [{name: main, image: "$IMAGE", command: [sh, -c, "seq 1000"]}]`, "status.phase", "^Succeeded$",
	},
	{
		`restartPolicy: Never
  initContainers: [{name: side, image: "$IMAGE", restartPolicy: Always, command: [sleep, "10000"]}]
  containers: [{name: main, image: "$IMAGE", command: ["true"]}]`, "status.phase", "^Succeeded$",
	},
	{
		`containers: [{name: main, image: "$IMAGE", command: ["false"]}]`, "status.containerStatuses.0.restartCount", "^[1-9]",
	},
	{
		`volumes: [{name: m, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]
  containers: [{name: main, image: "$IMAGE", command: [sh, -c, "echo x > /m/x; exec sleep 10000"], volumeMounts: [{name: m, mountPath: /m}],
      resources: {requests: {cpu: 1m, memory: 4Mi}, limits: {cpu: 500m, memory: 32Mi}}}]`, "status.containerStatuses.0.ready", "^true$",
	},
	{
		`hostNetwork: true
  containers: [{name: main, image: "$IMAGE", command: [sleep, "10000"]}]`, "status.containerStatuses.0.ready", "^true$",
	},
	{
		`shareProcessNamespace: true
  containers: [{name: main, image: "$IMAGE", command: [sh, -c, "sleep 10000 & sleep 10000 & wait"]}, {name: other, image: "$IMAGE", command: [sleep, "10000"]}]`,
		"status.containerStatuses.1.ready", "^true$",
	},
}

// TestKubeletChurn: pods come and go, many at once, and nothing of them is left: no mount,
// namespace, cgroup, process, file, address or descriptor, and in coracled no goroutine and no
// memory. Not with evented PLEG: when its channel is full, the kubelet (1.36) calls itself
// unhealthy, stops reading the channel, and never recovers.
func TestKubeletChurn(t *testing.T) {
	n := newNode(t, testkit.Options{LogLevel: "warn", Config: fmt.Sprintf("[metrics]\naddress = %q\n", metricsAddress)})
	k := startKubelet(t, n, kubeletOptions{})
	// A first wave makes what is made for as many pods as there ever are at once: the heap, tables,
	// connections.
	k.wave(t, "warm")
	k.clear(t, "warm")
	check := k.noLeaks(t)
	before := n.figures(t)
	last := ""
	for i := range (*churnPods + churnWave - 1) / churnWave {
		wave := fmt.Sprintf("w%d", i)
		k.wave(t, wave)
		if last != "" {
			k.clear(t, last)
		}
		last = wave
		t.Logf("%d pods: %v", (i+1)*churnWave, n.figures(t))
	}
	k.clear(t, last)
	k.await(t, "the kubelet has nothing left", k.empty)
	after := n.figures(t)
	t.Logf("before %v, after %v", before, after)
	for name, slack := range map[string]float64{
		"go_goroutines": 8, "process_open_fds": 4, "process_resident_memory_bytes": rssSlack,
		"shim": rssSlack,
	} {
		if after[name] > before[name]+slack {
			t.Errorf("%s: %.0f, was %.0f", name, after[name], before[name])
		}
	}
	check()
}

// wave gives the kubelet so many manifests at once, and waits until each pod has been through what
// it is for.
func (k *kubelet) wave(t *testing.T, wave string) {
	t.Helper()
	for i := range churnWave {
		kind := churnKinds[i%len(churnKinds)]
		text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s-%d}\nspec:\n  terminationGracePeriodSeconds: 1\n  %s\n",
			wave, i, strings.ReplaceAll(kind.spec, "$IMAGE", testRef("busybox")))
		tmp := filepath.Join(k.dir, fmt.Sprintf("%s-%d", wave, i))
		if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(k.manifests, filepath.Base(tmp))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range churnWave {
		kind := churnKinds[i%len(churnKinds)]
		name := fmt.Sprintf("%s-%d", wave, i)
		k.await(t, "pod "+name, func() error { return k.shows(name, kind.path, kind.want) })
	}
}

// clear takes a wave's manifests away. The kubelet ends the pods while others come.
func (k *kubelet) clear(t *testing.T, wave string) {
	t.Helper()
	for i := range churnWave {
		if err := os.Remove(filepath.Join(k.manifests, fmt.Sprintf("%s-%d", wave, i))); err != nil {
			t.Fatal(err)
		}
	}
}

// figures are what coracled tells of itself, and the shims' resident memory.
func (n *node) figures(t *testing.T) map[string]float64 {
	t.Helper()
	own := scrape(t, "http://"+metricsAddress+"/metrics")
	all := map[string]float64{}
	for _, name := range []string{"go_goroutines", "process_open_fds", "process_resident_memory_bytes"} {
		if value, there := own[name]; there {
			all[name] = value
		}
	}
	for _, pid := range n.Shims() {
		statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			t.Fatal(err)
		}
		var size, resident float64
		if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
			t.Fatal(err)
		}
		all["shim"] += resident * float64(os.Getpagesize())
	}
	if len(all) != 4 {
		t.Fatalf("figures %v", all)
	}
	return all
}
