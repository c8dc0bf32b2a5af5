//go:build csi

package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/coracle-project/coracle/integration/images"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

const (
	diskDriver = "disk.csi.coracle.test"
	// diskLook is between two looks at files and objects that no command waits for.
	diskLook = 50 * time.Millisecond
)

// disks is a cluster with the test driver of hack/csi/driver and upstream's sidecars. The driver's
// package says what is in the directory data.
type disks struct {
	*cluster
	data string
	life string // the claim of a volume's life, see diskLife
}

// newDisks starts a cluster with the driver, which is registered. The test fails if at its end
// anything is left of volumes.
func newDisks(t *testing.T) *disks {
	t.Helper()
	bin, err := testkit.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	src, err := images.NewSource(bin)
	if err != nil {
		t.Fatal(err)
	}
	list, err := src.CSI()
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Push(t.Context(), registry.Addr, list, ociimage.Registry{PlainHTTP: true}); err != nil {
		t.Fatal(err)
	}
	data, err := os.MkdirTemp("", "kube-disks-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the cluster's end
		endLoops(t, data)
		if err := os.RemoveAll(data); err != nil {
			t.Error(err)
		}
	})
	d := &disks{cluster: newCluster(t), data: data}
	t.Cleanup(func() {
		defer func() {
			if !t.Failed() {
				return
			}
			d.run(t, "down") // otherwise the purge refuses to delete what a failed test has left
			for _, dir := range []string{"kube/kubelet/plugins", "kube/kubelet/pods", "logs/pods", "logs/containers"} {
				_ = os.RemoveAll(filepath.Join(d.root, dir)) // purge knows the pods' logs by the directories of pods
			}
		}()
		if t.Failed() {
			d.showDriver(t)
			return
		}
		d.awaitNothingLeft(t)
	})
	d.deploy(t)
	return d
}

// deploy applies upstream's manifests and ours, and returns when all of it runs.
func (d *disks) deploy(t *testing.T) {
	t.Helper()
	for _, name := range []string{"volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"} {
		d.kube(t, "apply", "--server-side", "-f", testkit.Bin(t, "csi", "manifests", name+".yaml"))
		d.await(t, "wait", "crd/"+name+".snapshot.storage.k8s.io", "--for=condition=Established")
	}
	for _, name := range []string{"provisioner-rbac", "attacher-rbac", "resizer-rbac", "snapshotter-rbac", "snapshot-controller-rbac"} {
		d.kube(t, "apply", "-f", testkit.Bin(t, "csi", "manifests", name+".yaml"))
	}
	for dir := range strings.FieldsSeq("volumes snapshots nodes abnormal faults reached") {
		if err := os.MkdirAll(filepath.Join(d.data, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(d.data, 0o755); err != nil {
		t.Fatal(err)
	}
	manifest, err := template.ParseFiles(filepath.Join("testdata", "csi", "driver.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	err = manifest.Execute(&text, map[string]any{
		"Registry": registry.Addr, "Data": d.data,
		"Roles": []string{"external-provisioner-runner", "external-attacher-runner", "external-resizer-runner", "external-snapshotter-runner"},
		"SnapshotNamespace": strings.TrimSpace(d.kube(t, "get", "serviceaccounts", "-A", "--field-selector", "metadata.name=snapshot-controller",
			"-o", "jsonpath={.items[0].metadata.namespace}")),
	})
	if err != nil {
		t.Fatal(err)
	}
	d.apply(t, text.String())
	d.awaitDriver(t)
}

// awaitDriver returns when the driver's pods run, and the node has the driver.
func (d *disks) awaitDriver(t *testing.T) {
	t.Helper()
	d.awaitTrue(t, "the driver's pods are ready", func() bool {
		ready := d.kube(t, "get", "pods", "-l", "app in (disk-controller, disk-node)", "-o",
			`jsonpath={range .items[*]}{.metadata.deletionTimestamp}{.status.conditions[?(@.type=="Ready")].status} {end}`)
		return ready == "True True "
	}, d.story)
	d.awaitTrue(t, "the node has the driver", func() bool { return d.driversOfNode(t) == diskDriver }, d.story)
}

func (d *disks) driversOfNode(t *testing.T) string {
	t.Helper()
	return d.kube(t, "get", "csinode", "boat", "-o", "jsonpath={.spec.drivers[*].name}")
}

// renewDriver replaces the driver's pods by others, which have not been restarted yet.
func (d *disks) renewDriver(t *testing.T) {
	t.Helper()
	before := len(d.calls(t, "end", "NodeGetInfo", ""))
	d.kube(t, "delete", "pods", "-l", "app in (disk-controller, disk-node)", "--now")
	d.awaitTrue(t, "the driver is registered again", func() bool { return len(d.calls(t, "end", "NodeGetInfo", "")) > before }, d.story)
	d.awaitDriver(t)
}

// awaitTrue looks until a condition is true. state says what there is instead.
func (d *disks) awaitTrue(t *testing.T, what string, is func() bool, state func() string) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(diskLook) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s\n%s", patience, what, state())
		}
	}
}

// story is what a failure is told with.
func (d *disks) story() string {
	out, _ := d.tryKube("", "get", "pods,pvc,pv,volumeattachments,volumesnapshots,events", "-A")
	return out
}

// diskFault is a fault of the driver's, see hack/csi/driver/fault.go.
type diskFault struct {
	When   string `json:"when"`
	Do     string `json:"do"`
	Code   int    `json:"code,omitempty"`
	Volume string `json:"volume,omitempty"`
	Keep   bool   `json:"keep,omitempty"`
}

// arm makes the driver reach a fault at its next call of a method, and returns the fault's name.
func (d *disks) arm(t *testing.T, method string, f diskFault) string {
	t.Helper()
	name := fmt.Sprintf("%s@%s-%s-%d", method, f.When, f.Do, time.Now().UnixNano())
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(d.data, name)
	if err := errors.Join(os.WriteFile(at, data, 0o644), os.Rename(at, filepath.Join(d.data, "faults", name))); err != nil {
		t.Fatal(err)
	}
	return name
}

// awaitReached returns when a call has reached a fault.
func (d *disks) awaitReached(t *testing.T, name string) {
	t.Helper()
	d.awaitTrue(t, "a call reaches the fault "+name, func() bool {
		_, err := os.Lstat(filepath.Join(d.data, "reached", name))
		return err == nil
	}, d.story)
}

// armForAll makes all calls of a method for a volume hang until release is called.
func (d *disks) armForAll(t *testing.T, method, volume string) (release func()) {
	t.Helper()
	name := d.arm(t, method, diskFault{When: "before", Do: "hang", Volume: volume, Keep: true})
	return func() {
		t.Helper()
		if err := os.Remove(filepath.Join(d.data, "faults", name)); err != nil {
			t.Error(err)
		}
	}
}

// release ends a hang.
func (d *disks) release(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(d.data, "reached", name)); err != nil {
		t.Error(err)
	}
}

// diskCall is a line of the driver's journal.
type diskCall struct {
	Phase, Method, Volume, Code, Error string
	Request                            json.RawMessage
	Secrets                            []string
}

// calls are those of a method for a volume (any if it is empty), in a phase: call, fault or end.
func (d *disks) calls(t *testing.T, phase, method, volume string) (list []diskCall) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(d.data, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		if !bytes.HasSuffix(line, []byte("\n")) { // it is being written
			break
		}
		var c diskCall
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if c.Phase == phase && c.Method == method && (volume == "" || c.Volume == volume) {
			list = append(list, c)
		}
	}
	return list
}

// handle is the driver's id of a claim's volume.
func (d *disks) handle(t *testing.T, claim string) string {
	t.Helper()
	pv := d.kube(t, "get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
	return d.kube(t, "get", "pv", pv, "-o", "jsonpath={.spec.csi.volumeHandle}")
}

// diskClaim is the manifest of a claim. more are further fields of its spec.
func diskClaim(name, class, size, more string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec: {storageClassName: %s, resources: {requests: {storage: %s}}, accessModes: [ReadWriteOnce]%s}
`, name, class, size, more)
}

// diskPod is the manifest of a pod with a volume at /data. more are further fields of its spec.
func diskPod(name, volume, more string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {user: disk}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: "%s/demo/busybox:1"
    command: [sleep, "1000000"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, %s}]%s
`, name, registry.Addr, volume, more)
}

func ofClaim(claim string) string {
	return fmt.Sprintf("persistentVolumeClaim: {claimName: %s}", claim)
}

func (d *disks) awaitReady(t *testing.T, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		if out, err := d.tryKube("", "wait", "pod/"+pod, "--for=condition=Ready", "--timeout", patience.String()); err != nil {
			t.Fatalf("pod %s: %v, %s\n%s", pod, err, out, d.story())
		}
	}
}

func (d *disks) awaitBound(t *testing.T, claim string) {
	t.Helper()
	d.await(t, "wait", "pvc/"+claim, "--for=jsonpath={.status.phase}=Bound")
}

// in runs a script in a pod.
func (d *disks) in(t *testing.T, pod, script string) string {
	t.Helper()
	return d.kube(t, "exec", pod, "--", "sh", "-c", script)
}

// awaitEvent returns when an object has an event with a reason that says something.
func (d *disks) awaitEvent(t *testing.T, object, reason string, says ...string) {
	t.Helper()
	var out string
	d.awaitTrue(t, fmt.Sprintf("%s has an event %s that says %q", object, reason, says), func() bool {
		out = d.kube(t, "get", "events", "--field-selector", "involvedObject.name="+object+",reason="+reason, "-o",
			"jsonpath={range .items[*]}{.message}{\"\\n\"}{end}")
		for message := range strings.Lines(out) {
			if !slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(message, s) }) {
				return true
			}
		}
		return false
	}, func() string { return out + d.story() })
}

// remove deletes what a test has made, and returns when it is gone.
func (d *disks) remove(t *testing.T, objects ...string) {
	t.Helper()
	d.kube(t, append([]string{"delete", "--ignore-not-found", "--timeout", patience.String()}, objects...)...)
}

// clear deletes all that tests make, and returns when it is gone.
func (d *disks) clear(t *testing.T) {
	t.Helper()
	d.remove(t, "pod", "-l", "user=disk")
	d.remove(t, "volumesnapshot,pvc", "--all")
	d.awaitNothingLeft(t)
}

// awaitGone returns when there are none of some objects.
func (d *disks) awaitGone(t *testing.T, objects ...string) {
	t.Helper()
	d.awaitTrue(t, fmt.Sprintf("%v are gone", objects), func() bool {
		return d.kube(t, append([]string{"get", "--ignore-not-found", "-o", "name"}, objects...)...) == ""
	}, d.story)
}

// awaitNothingLeft returns when the cluster, the node and the driver have nothing of any volume.
func (d *disks) awaitNothingLeft(t *testing.T) {
	t.Helper()
	var left []string
	d.awaitTrue(t, "nothing is left of volumes", func() bool {
		left = append(d.leftOnNode(t), d.leftInCluster(t)...)
		return len(left) == 0
	}, func() string { return strings.Join(left, "\n") + "\n" + d.story() })
}

func (d *disks) leftInCluster(t *testing.T) (left []string) {
	t.Helper()
	left = strings.Fields(d.kube(t, "get", "persistentvolumes,volumeattachments,volumesnapshotcontents", "-o", "name"))
	left = append(left, strings.Fields(d.kube(t, "get", "node", "boat", "-o",
		"jsonpath={.status.volumesInUse[*]} {.status.volumesAttached[*].name}"))...)
	for _, kind := range []string{"volumes", "snapshots"} {
		files, err := filepath.Glob(filepath.Join(d.data, kind, "*"))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, files...)
	}
	return left
}

// leftOnNode are mounts, loop devices and directories of volumes.
func (d *disks) leftOnNode(t *testing.T) (left []string) {
	t.Helper()
	left = append(diskMounts(t), loopsOf(d.data)...)
	kubelet := filepath.Join(d.root, "kube", "kubelet")
	for _, pattern := range []string{
		"plugins/kubernetes.io/csi/" + diskDriver + "/*", "plugins/kubernetes.io/csi/volumeDevices/p[vu]*/*",
		"plugins/kubernetes.io/csi/volumeDevices/staging/*", "pods/*/volumes/kubernetes.io~csi", "pods/*/volumeDevices/*",
	} {
		found, err := filepath.Glob(filepath.Join(kubelet, pattern))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	return left
}

// diskMounts are the mounts of CSI volumes in this mount namespace.
func diskMounts(t *testing.T) (mounts []string) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, "kubernetes.io~csi") || strings.Contains(line, "/plugins/kubernetes.io/csi/") {
			mounts = append(mounts, strings.Fields(line)[4])
		}
	}
	return mounts
}

// loopsOf are the loop devices with files of a directory.
func loopsOf(dir string) (loops []string) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the pattern is right
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(backing), filepath.Base(dir)) {
			loops = append(loops, strings.TrimSpace(file+" "+string(backing)))
		}
	}
	return loops
}

// endLoops complains of loop devices with files of a directory, and ends them: they are the whole
// machine's.
func endLoops(t *testing.T, dir string) {
	t.Helper()
	for _, loop := range loopsOf(dir) {
		t.Errorf("this loop device is left: %s", loop)
		device := filepath.Base(filepath.Dir(filepath.Dir(strings.Fields(loop)[0])))
		if out, err := exec.Command("losetup", "-d", "/dev/"+device).CombinedOutput(); err != nil {
			t.Errorf("losetup: %v, %s", err, out)
		}
	}
}

// showDriver tells what the driver and its sidecars said.
func (d *disks) showDriver(t *testing.T) {
	t.Helper()
	t.Log(d.story())
	for _, app := range []string{"disk-controller", "disk-node"} {
		out, _ := d.tryKube("", "logs", "-l", "app="+app, "--all-containers", "--prefix", "--tail=30")
		t.Log(out)
	}
	calls, err := os.ReadFile(filepath.Join(d.data, "calls"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Log(err)
	}
	t.Logf("the driver's calls end with\n%s", calls[max(len(calls)-8<<10, 0):])
	t.Logf("left: %v", d.leftOnNode(t))
}
