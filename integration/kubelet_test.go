//go:build kubelet

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// The tests with this tag run upstream's own kubelet, unmodified, on coracled. `make test-kubelet`
// builds it and runs them.

const (
	kubeletNode = "kubelet-node"
	// kubeletIP is the node's address: kubelets do not take one of the loopback's.
	kubeletIP = "10.99.0.1"
	// kubeletPatience bounds what a test waits for: the kubelet looks at some things once a minute
	// only.
	kubeletPatience = 3 * time.Minute
)

// kubelet is one of upstream's, on a node of the test's.
type kubelet struct {
	n         *node
	manifests string // of static pods
	dir       string
	logFile   string
	cmd       *exec.Cmd
	exit      chan struct{} // closed when it has ended
}

// kubeletOptions are options besides those of every kubelet of these tests.
type kubeletOptions struct {
	config     string // more KubeletConfiguration
	kubeconfig string // of an API server; empty: the kubelet runs alone
}

// kubeletConfig lets the kubelet run on old cgroups, too, with pods at its own discretion only: no
// limit of calls, no eviction, and restarts that follow each other quickly.
const kubeletConfig = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
readOnlyPort: 10255
containerRuntimeEndpoint: unix://{SOCKET}
staticPodPath: {MANIFESTS}
podLogsDir: {LOGS}
cgroupDriver: cgroupfs
cgroupRoot: {CGROUP}
enforceNodeAllocatable: [none]
failCgroupV1: false
failSwapOn: false
maxPods: 500
registryPullQPS: 0
serializeImagePulls: false
eventRecordQPS: 0
fileCheckFrequency: 5s
kubeAPIQPS: 1000
kubeAPIBurst: 1000
makeIPTablesUtilChains: false
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
`

// startKubelet starts the kubelet and waits until it is well. It ends with the test, which first
// takes its static pods from it.
func startKubelet(t *testing.T, n *node, o kubeletOptions) *kubelet {
	t.Helper()
	dir := t.TempDir()
	k := &kubelet{n: n, dir: dir, manifests: filepath.Join(dir, "manifests"), logFile: filepath.Join(dir, "kubelet.log")}
	if err := os.Mkdir(k.manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	furnishForKubelet(t, n, dir)
	config := strings.NewReplacer("{SOCKET}", n.Socket, "{MANIFESTS}", k.manifests, "{LOGS}", n.Logs,
		"{CGROUP}", n.Cgroup).Replace(kubeletConfig) + o.config
	if !strings.Contains(o.config, "evictionHard") {
		config += "evictionHard: {memory.available: 1Mi}\n"
	}
	path := filepath.Join(dir, "kubelet.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--config", path, "--node-ip", kubeletIP, "--hostname-override", kubeletNode}
	if o.kubeconfig != "" {
		args = append(args, "--kubeconfig", o.kubeconfig)
	}
	log, err := os.Create(k.logFile)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	program := "kubelet"
	if version := os.Getenv("KUBELET_VERSION"); version != "" {
		program += "-" + version
		args = append(args, "--feature-gates", "KubeletCrashLoopBackOffMax=true,ImageVolume=true") // on by default since 1.35
	}
	k.cmd = exec.Command(testkit.Bin(t, "peers", "bin", program), args...)
	k.cmd.Stdout, k.cmd.Stderr = log, log
	if err := k.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	k.exit = make(chan struct{})
	go func() {
		defer close(k.exit)
		_ = k.cmd.Wait()
	}()
	t.Cleanup(func() { k.stop(t) })
	k.await(t, "the kubelet is well", func() error {
		_, err := k.get("healthz")
		return err
	})
	return k
}

// stop takes the kubelet's pods from it, and ends it.
func (k *kubelet) stop(t *testing.T) {
	left, err := filepath.Glob(filepath.Join(k.manifests, "*"))
	for _, f := range left {
		err = errors.Join(err, os.Remove(f))
	}
	if err != nil {
		t.Error(err)
	}
	if err := k.until(k.empty); err != nil {
		t.Errorf("without manifests the kubelet still has pods: %v", err)
	}
	_ = k.cmd.Process.Signal(syscall.SIGTERM)
	<-k.exit
	if t.Failed() {
		said, _ := os.ReadFile(k.logFile)
		t.Logf("the kubelet's log ends:\n%s", said[max(0, len(said)-12_000):])
	}
	if err := testkit.RemoveCgroups(filepath.Join(k.n.Cgroup, "kubepods")); err != nil {
		t.Error(err)
	}
}

// furnishForKubelet gives the kubelet a machine of its own: the directories whose paths are fixed
// in it, files in the place of the kernel's settings that it would change, an address, and the
// cgroups that it starts from.
func furnishForKubelet(t *testing.T, n *node, dir string) {
	t.Helper()
	over := map[string]string{}
	for _, path := range []string{"/var/lib/kubelet", "/var/log"} {
		if _, err := os.Stat(path); os.IsNotExist(err) {
			t.Cleanup(func() {
				if err := os.Remove(path); err != nil {
					t.Error(err)
				}
			})
		}
		own := filepath.Join(dir, filepath.Base(path))
		if err := errors.Join(os.MkdirAll(own, 0o755), os.MkdirAll(path, 0o755)); err != nil {
			t.Fatal(err)
		}
		over[path] = own
	}
	for _, name := range []string{
		"kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
		"vm/overcommit_memory", "vm/panic_on_oom",
	} {
		own := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(own, []byte("0"), 0o644); err != nil {
			t.Fatal(err)
		}
		over[filepath.Join("/proc/sys", name)] = own
	}
	for path, own := range over {
		if err := unix.Mount(own, path, "", unix.MS_BIND, ""); err != nil {
			t.Fatalf("mount on %s: %v", path, err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(path, 0); err != nil {
				t.Errorf("unmount %s: %v", path, err)
			}
		})
	}
	addKubeletIP(t)
	if err := testkit.MakeCgroups(n.Cgroup); err != nil {
		t.Fatal(err)
	}
}

func addKubeletIP(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(kubeletIP + "/32")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrReplace(lo, addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.AddrDel(lo, addr); err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) { // added twice
			t.Error(err)
		}
	})
}

// get asks the kubelet's read-only API.
func (k *kubelet) get(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10255/"+path, nil)
	if err != nil {
		return nil, err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, r.Status, body)
	}
	return body, err
}

// pods are those that the kubelet has, by name, as its API shows them.
func (k *kubelet) pods() (map[string]map[string]any, error) {
	body, err := k.get("pods")
	if err != nil {
		return nil, err
	}
	var list struct{ Items []map[string]any }
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	pods := map[string]map[string]any{}
	for _, p := range list.Items {
		pods[field(p, "metadata.name")] = p
	}
	return pods, nil
}

// field is a value at a path like "status.containerStatuses.0.restartCount", as text; empty if
// there is none.
func field(o any, path string) string {
	for key := range strings.SplitSeq(path, ".") {
		switch v := o.(type) {
		case map[string]any:
			o = v[key]
		case []any:
			i := -1
			if _, err := fmt.Sscan(key, &i); err != nil || i < 0 || i >= len(v) {
				return ""
			}
			o = v[i]
		default:
			return ""
		}
	}
	if o == nil {
		return ""
	}
	return fmt.Sprint(o)
}

// empty says what is there of pods, for the kubelet or the runtime.
func (k *kubelet) empty() error {
	pods, err := k.pods()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	boxes, err := k.n.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	containers, err := k.n.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return err
	}
	// Directories of volumes go last.
	dirs, err := filepath.Glob("/var/lib/kubelet/pods/*")
	if err != nil {
		return err
	}
	if n := len(pods) + len(boxes.GetItems()) + len(containers.GetContainers()) + len(dirs); n > 0 {
		return fmt.Errorf("%d pods of the kubelet, %d of the runtime with %d containers, %d directories of pods",
			len(pods), len(boxes.GetItems()), len(containers.GetContainers()), len(dirs))
	}
	return nil
}

// await waits for what nothing announces.
func (k *kubelet) await(t testing.TB, what string, ok func() error) {
	t.Helper()
	if err := k.until(ok); err != nil {
		t.Fatalf("not within %v: %s: %v", kubeletPatience, what, err)
	}
}

// until returns nil once ok does, or what ok says when there is no more patience, or no kubelet.
func (k *kubelet) until(ok func() error) error {
	end := time.NewTimer(kubeletPatience)
	defer end.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-k.exit:
			return fmt.Errorf("the kubelet has ended: %w", err)
		case <-end.C:
			return err
		}
	}
}

// noLeaksOfKubelet is noLeaks for what a kubelet had run: images stay, as they do on a node, and so
// do the cgroups of the classes of pods.
func (k *kubelet) noLeaks(t *testing.T) func() {
	t.Helper()
	k.n.pull("busybox")
	for name, resources := range map[string]string{"besteffort": "{}", "burstable": "{requests: {memory: 1Mi}}"} {
		manifest := strings.NewReplacer("{NAME}", name, "{IMAGE}", testRef("busybox"), "{RESOURCES}", resources).Replace(warmPod)
		if err := os.WriteFile(filepath.Join(k.manifests, name), []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		k.await(t, "pod "+name+" is ready", func() error { return k.shows(name, "status.containerStatuses.0.ready", "true") })
		if err := os.Remove(filepath.Join(k.manifests, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.n.ListPodSandboxStats(k.n.ctx(), &cri.ListPodSandboxStatsRequest{}); err != nil {
		t.Fatal(err)
	}
	k.await(t, "the pods are gone", k.empty)
	check := k.n.noLeaks()
	return func() {
		t.Helper()
		k.await(t, "the kubelet has nothing left", k.empty)
		check()
	}
}

// warmPod takes what is made once through its life.
const warmPod = `
apiVersion: v1
kind: Pod
metadata: {name: {NAME}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {IMAGE}
    command: [sleep, "10000"]
    resources: {RESOURCES}
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 10}
`

// shows says in how far the kubelet does not show at path of a pod's object what the regular
// expression matches.
func (k *kubelet) shows(pod, path, want string) error {
	re, err := regexp.Compile(want)
	if err != nil {
		return err
	}
	pods, err := k.pods()
	if err != nil {
		return err
	}
	p, ok := pods[pod+"-"+kubeletNode]
	if !ok {
		return fmt.Errorf("no pod %s; there are %s", pod, slices.Sorted(maps.Keys(pods)))
	}
	if got := field(p, path); !re.MatchString(got) {
		return fmt.Errorf("%s of pod %s is %q; status %v", path, pod, got, p["status"])
	}
	return nil
}
