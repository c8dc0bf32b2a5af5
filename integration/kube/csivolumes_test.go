//go:build csi

package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

// What a CSI driver is used for, each with volumes of its own, of which nothing is left.
func TestCSI(t *testing.T) {
	d := newDisks(t)
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *disks)
	}{
		{"data survive kill -9", dataSurvive},
		{"block", blockVolume},
		{"inline", inlineVolume},
		{"fsGroup", groupOfFiles},
		{"growth", growWhileMounted},
		{"snapshot", snapshotAndRestore},
		{"topology", lateBinding},
		{"shared by two pods", twoPodsOneVolume},
		{"secrets", secretsOfCalls},
		{"pod deleted by force", forceDeleted},
		{"claim deleted while mounted", claimDeletedWhileMounted},
		{"one pod only", readWriteOncePod},
		{"full volume", fullVolume},
		{"driver hangs", driverHangs},
		{"driver refuses", driverRefuses},
		{"driver is restarted", driverRestarted},
		{"driver is away", driverAway},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.run(t, d)
			if t.Failed() {
				t.Log(d.story())
			}
			d.clear(t)
		})
	}
}

// A claim is provisioned, attached and mounted. What is written is there after kill -9 of both
// programs, and in the next pod.
func dataSurvive(t *testing.T, d *disks) {
	d.apply(t, diskClaim("kept", "disk", "512Mi", "")+diskPod("one", ofClaim("kept"), ""))
	d.awaitReady(t, "one")
	d.in(t, "one", "echo before >/data/file; sync")
	attachment := d.kube(t, "get", "volumeattachments", "-o", "jsonpath={.items[*].status.attached}")
	if attachment != "true" {
		t.Errorf("VolumeAttachments: attached is %q", attachment)
	}
	volume := d.handle(t, "kept")
	if got, want := d.kube(t, "get", "node", "boat", "-o", "jsonpath={.status.volumesInUse[*]}"),
		"kubernetes.io/csi/"+diskDriver+"^"+volume; got != want {
		t.Errorf("the node's volumesInUse are %q, want %q", got, want)
	}
	started := d.kube(t, "get", "pod", "one", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	for _, name := range []string{"coracle-kube", "coracled"} {
		if err := testkit.Kill(d.process(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	d.up(t)
	d.awaitReady(t, "one")
	if got := d.in(t, "one", "cat /data/file; echo after >>/data/file; sync"); got != "before\n" {
		t.Errorf("after kill -9 the file is %q", got)
	}
	if got := d.kube(t, "get", "pod", "one", "-o", "jsonpath={.status.containerStatuses[0].containerID}"); got != started {
		t.Errorf("the pod's container is %s, and was %s", got, started)
	}
	d.remove(t, "pod", "one")
	d.apply(t, diskPod("two", ofClaim("kept"), ""))
	d.awaitReady(t, "two")
	if got := d.in(t, "two", "cat /data/file"); got != "before\nafter\n" {
		t.Errorf("in the next pod the file is %q", got)
	}
}

// A volume without a file system is a device in the pod.
func blockVolume(t *testing.T, d *disks) {
	pod := func(name string) string {
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
    volumeDevices: [{name: data, devicePath: /dev/disk}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: raw}}]
`, name, registry.Addr)
	}
	d.apply(t, diskClaim("raw", "disk", "320Mi", ", volumeMode: Block")+pod("block-one"))
	d.awaitReady(t, "block-one")
	d.in(t, "block-one", "test -b /dev/disk && echo words | dd of=/dev/disk bs=4096 seek=100 conv=sync,fsync")
	if got := strings.TrimSpace(d.in(t, "block-one", "blockdev --getsize64 /dev/disk")); got != strconv.Itoa(320<<20) {
		t.Errorf("the device has %s bytes", got)
	}
	if err := testkit.Kill(d.process(t, "coracle-kube")); err != nil {
		t.Fatal(err)
	}
	d.up(t)
	d.remove(t, "pod", "block-one")
	d.apply(t, pod("block-two"))
	d.awaitReady(t, "block-two")
	if got := d.in(t, "block-two", "dd if=/dev/disk bs=4096 skip=100 count=1 2>/dev/null | head -c 6"); got != "words\n" {
		t.Errorf("in the next pod the device has %q", got)
	}
}

// A volume that a pod names itself ends with the pod, and is never attached. The driver learns of
// the pod.
func inlineVolume(t *testing.T, d *disks) {
	d.apply(t, diskPod("inline", fmt.Sprintf(`csi: {driver: %s, volumeAttributes: {size: "%d"}}`, diskDriver, 300<<20), ""))
	d.awaitReady(t, "inline")
	d.in(t, "inline", "echo words >/data/file")
	if size := d.sizeIn(t, "inline"); size < 200<<10 || size > 300<<10 {
		t.Errorf("the volume has %d KiB", size)
	}
	if got := d.kube(t, "get", "volumeattachments,pv", "-o", "name"); got != "" {
		t.Errorf("an inline volume has made %s", got)
	}
	calls := d.calls(t, "end", "NodePublishVolume", "")
	volume := calls[len(calls)-1].Volume
	var request struct{ VolumeContext map[string]string }
	call := d.calls(t, "call", "NodePublishVolume", volume)[0]
	if err := json.Unmarshal(call.Request, &request); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"ephemeral": "true", "pod.name": "inline", "pod.namespace": "default", "serviceAccount.name": "default",
		"pod.uid": d.kube(t, "get", "pod", "inline", "-o", "jsonpath={.metadata.uid}"),
	} {
		if got := request.VolumeContext["csi.storage.k8s.io/"+key]; got != want {
			t.Errorf("the driver learns %s=%q, want %q", key, got, want)
		}
	}
	if n := len(d.calls(t, "call", "NodeStageVolume", volume)); n != 0 {
		t.Errorf("an inline volume was staged %d times", n)
	}
}

// sizeIn is the size of the file system at /data, in KiB.
func (d *disks) sizeIn(t *testing.T, pod string) int {
	t.Helper()
	fields := strings.Fields(d.in(t, pod, "df -kP /data | tail -n 1"))
	if len(fields) < 2 {
		t.Fatalf("df: %v", fields)
	}
	n, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Whether a volume's files get the pod's group is the driver's policy.
func groupOfFiles(t *testing.T, d *disks) {
	t.Cleanup(func() { d.setPolicy(t, "File") })
	for policy, want := range map[string]string{"File": "2000", "None": "0", "ReadWriteOnceWithFSType": "2000"} {
		d.setPolicy(t, policy)
		name := "group-" + strings.ToLower(policy)
		d.apply(t, diskClaim(name, "disk", "320Mi", "")+diskPod(name, ofClaim(name),
			"\n  securityContext: {fsGroup: 2000, runAsUser: 1000, runAsGroup: 1000}"))
		d.awaitReady(t, name)
		if got := strings.TrimSpace(d.in(t, name, "stat -c %g /data")); got != want {
			t.Errorf("with the policy %s the volume's group is %s, want %s", policy, got, want)
		}
		_, err := d.tryKube("", "exec", name, "--", "sh", "-c", "echo words >/data/file")
		if (err == nil) != (want == "2000") {
			t.Errorf("with the policy %s, writing as user 1000: %v", policy, err)
		}
	}
}

func (d *disks) setPolicy(t *testing.T, policy string) {
	t.Helper()
	d.kube(t, "patch", "csidriver", diskDriver, "-p", fmt.Sprintf(`{"spec":{"fsGroupPolicy":%q}}`, policy))
}

// grow asks for more, and returns when the claim has it.
func (d *disks) grow(t *testing.T, claim, size string) {
	t.Helper()
	d.kube(t, "patch", "pvc", claim, "-p", fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size))
	if out, err := d.tryKube("", "wait", "pvc/"+claim, "--for=jsonpath={.status.capacity.storage}="+size, "--timeout",
		patience.String()); err != nil {
		t.Fatalf("claim %s does not grow: %v, %s\n%s", claim, err, out, d.story())
	}
}

// A volume grows while a pod uses it, and so does its file system; also one that grew while no pod
// had it.
func growWhileMounted(t *testing.T, d *disks) {
	d.apply(t, diskClaim("growing", "disk", "320Mi", "")+diskPod("growing", ofClaim("growing"), ""))
	d.awaitReady(t, "growing")
	before := d.sizeIn(t, "growing")
	d.grow(t, "growing", "512Mi")
	if after := d.sizeIn(t, "growing"); before > 320<<10 || after < 400<<10 {
		t.Errorf("the file system had %d KiB, and has %d", before, after)
	}
	d.remove(t, "pod", "growing")
	d.kube(t, "patch", "pvc", "growing", "-p", `{"spec":{"resources":{"requests":{"storage":"640Mi"}}}}`)
	d.apply(t, diskPod("grown", ofClaim("growing"), ""))
	d.awaitReady(t, "grown")
	d.await(t, "wait", "pvc/growing", "--for=jsonpath={.status.capacity.storage}=640Mi")
	d.awaitTrue(t, "the file system has grown", func() bool { return d.sizeIn(t, "grown") > 550<<10 }, d.story)
	if got := d.kube(t, "get", "pvc", "growing", "-o", "jsonpath={.status.conditions}"); got != "" && got != "[]" {
		t.Errorf("the claim still has conditions: %s", got)
	}
}

// A snapshot has what was there when it was taken, and a claim is made of it.
func snapshotAndRestore(t *testing.T, d *disks) {
	d.apply(t, diskClaim("origin", "disk", "320Mi", "")+diskPod("origin", ofClaim("origin"), ""))
	d.awaitReady(t, "origin")
	d.in(t, "origin", "echo old >/data/file; sync")
	d.apply(t, `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: monday}
spec: {volumeSnapshotClassName: disk, source: {persistentVolumeClaimName: origin}}
`)
	d.await(t, "wait", "volumesnapshot/monday", "--for=jsonpath={.status.readyToUse}=true")
	d.in(t, "origin", "echo new >/data/file; sync")
	d.apply(t, diskClaim("restored", "disk", "512Mi", ", dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: monday}")+
		diskClaim("cloned", "disk", "320Mi", ", dataSource: {kind: PersistentVolumeClaim, name: origin}")+
		diskPod("restored", ofClaim("restored"), "")+diskPod("cloned", ofClaim("cloned"), ""))
	d.awaitReady(t, "restored", "cloned")
	for pod, want := range map[string]string{"restored": "old\n", "cloned": "new\n", "origin": "new\n"} {
		if got := d.in(t, pod, "cat /data/file"); got != want {
			t.Errorf("pod %s has %q, want %q", pod, got, want)
		}
	}
	if size := d.sizeIn(t, "restored"); size < 400<<10 {
		t.Errorf("the larger copy has %d KiB", size)
	}
}

// A claim of a class that waits is bound where its pod is, and the volume stays there. Without a
// place, or room, the pod waits, and says why.
func lateBinding(t *testing.T, d *disks) {
	d.apply(t, diskClaim("late", "disk-late", "320Mi", "")+diskClaim("elsewhere", "disk-elsewhere", "320Mi", "")+diskClaim("huge", "disk-late",
		"900Gi", ""))
	if got := d.kube(t, "get", "node", "boat", "-o", `jsonpath={.metadata.labels.disk\.csi\.coracle\.test/zone}`); got != "here" {
		t.Errorf("the node's zone is %q", got)
	}
	d.awaitEvent(t, "late", "WaitForFirstConsumer")
	d.apply(t, diskPod("late", ofClaim("late"), "")+diskPod("elsewhere", ofClaim("elsewhere"), "")+diskPod("huge", ofClaim("huge"), ""))
	d.awaitReady(t, "late")
	pv := d.kube(t, "get", "pvc", "late", "-o", "jsonpath={.spec.volumeName}")
	if got := d.kube(t, "get", "pv", pv, "-o", "jsonpath={.spec.nodeAffinity.required.nodeSelectorTerms}"); !strings.Contains(got,
		`"disk.csi.coracle.test/zone"`) || !strings.Contains(got, `"here"`) {
		t.Errorf("the volume's node affinity is %s", got)
	}
	d.awaitEvent(t, "elsewhere", "FailedScheduling", "available persistent volumes to bind")
	d.awaitEvent(t, "huge", "FailedScheduling", "enough free storage")
}

// Two pods of a node share a volume: it is staged once, and stays until the last one has ended.
func twoPodsOneVolume(t *testing.T, d *disks) {
	d.apply(t, diskClaim("shared", "disk", "320Mi", "")+diskPod("first", ofClaim("shared"), "")+diskPod("second", ofClaim("shared"), ""))
	d.awaitReady(t, "first", "second")
	volume := d.handle(t, "shared")
	d.in(t, "first", "echo words >/data/file")
	d.remove(t, "pod", "first")
	d.awaitTrue(t, "the first pod's volume is unpublished", func() bool {
		return len(d.calls(t, "end", "NodeUnpublishVolume", volume)) > 0
	}, d.story)
	if got := d.in(t, "second", "cat /data/file"); got != "words\n" {
		t.Errorf("the second pod has %q", got)
	}
	d.remove(t, "pod", "second")
	d.awaitTrue(t, "the volume is unstaged", func() bool { return len(d.calls(t, "end", "NodeUnstageVolume", volume)) > 0 }, d.story)
	for method, want := range map[string]int{"NodeStageVolume": 1, "NodePublishVolume": 2, "NodeUnpublishVolume": 2, "NodeUnstageVolume": 1} {
		done := slices.DeleteFunc(d.calls(t, "end", method, volume), func(c diskCall) bool { return c.Code == "Aborted" }) // two at once
		if len(done) != want {
			t.Errorf("%s was called %d times, want %d: %+v", method, len(done), want, done)
		}
	}
}

// Secrets that a class names are in the calls.
func secretsOfCalls(t *testing.T, d *disks) {
	d.apply(t, diskClaim("secret", "disk-secret", "320Mi", "")+diskPod("secret", ofClaim("secret"), ""))
	d.awaitReady(t, "secret")
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		calls := d.calls(t, "call", method, d.handle(t, "secret"))
		if len(calls) == 0 || !slices.Equal(calls[0].Secrets, []string{"passphrase"}) {
			t.Errorf("%s has the secrets %+v", method, calls)
		}
	}
	log, err := os.ReadFile(filepath.Join(d.root, "logs", "kube.log"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), "aye-aye") {
		t.Error("the secret is in the log")
	}
}

// A pod that is deleted by force leaves no mount, and no data are lost.
func forceDeleted(t *testing.T, d *disks) {
	d.apply(t, diskClaim("forced", "disk", "320Mi", "")+diskPod("forced", ofClaim("forced"), ""))
	d.awaitReady(t, "forced")
	d.in(t, "forced", "echo words >/data/file")
	if len(diskMounts(t)) == 0 {
		t.Error("nothing is mounted")
	}
	d.kube(t, "delete", "pod", "forced", "--force", "--grace-period=0")
	d.awaitTrue(t, "no mount is left", func() bool { return len(d.leftOnNode(t)) == 0 }, func() string { return fmt.Sprint(d.leftOnNode(t)) })
	d.apply(t, diskPod("forced", ofClaim("forced"), ""))
	d.awaitReady(t, "forced")
	if got := d.in(t, "forced", "cat /data/file"); got != "words\n" {
		t.Errorf("the next pod has %q", got)
	}
}

// A claim that is deleted while a pod uses it stays until the pod has ended.
func claimDeletedWhileMounted(t *testing.T, d *disks) {
	d.apply(t, diskClaim("doomed", "disk", "320Mi", "")+diskPod("doomed", ofClaim("doomed"), ""))
	d.awaitReady(t, "doomed")
	volume := d.handle(t, "doomed")
	d.kube(t, "delete", "pvc", "doomed", "--wait=false")
	if got := d.in(t, "doomed", "echo words >/data/file; sync; cat /data/file"); got != "words\n" {
		t.Errorf("the pod has %q", got)
	}
	if err := testkit.Kill(d.process(t, "coracle-kube")); err != nil { // also after a restart, which starts from the claim as it is
		t.Fatal(err)
	}
	d.up(t)
	d.awaitReady(t, "doomed")
	if got := d.in(t, "doomed", "cat /data/file"); got != "words\n" {
		t.Errorf("after kill -9 the pod has %q", got)
	}
	if n := len(d.calls(t, "call", "NodeUnpublishVolume", volume)) + len(d.calls(t, "call", "DeleteVolume", volume)); n != 0 {
		t.Errorf("%d calls took the volume from its pod", n)
	}
	d.remove(t, "pod", "doomed")
	d.await(t, "wait", "pvc/doomed", "--for=delete")
}

// Of two pods for a claim that only one may use the second waits: in the scheduler, and on the node
// if it gets there otherwise.
func readWriteOncePod(t *testing.T, d *disks) {
	claim := strings.Replace(diskClaim("only", "disk", "320Mi", ""), "ReadWriteOnce]", "ReadWriteOncePod]", 1)
	d.apply(t, claim+diskPod("holder", ofClaim("only"), ""))
	d.awaitReady(t, "holder")
	d.apply(t, diskPod("queued", ofClaim("only"), "")+diskPod("placed", ofClaim("only"), "\n  nodeName: boat"))
	d.awaitEvent(t, "queued", "FailedScheduling", "ReadWriteOncePod")
	d.awaitEvent(t, "placed", "FailedMount", "ReadWriteOncePod")
	if n := len(d.calls(t, "call", "NodePublishVolume", d.handle(t, "only"))); n != 1 {
		t.Errorf("the volume was published %d times", n)
	}
	d.remove(t, "pod", "holder", "queued")
	d.awaitReady(t, "placed")
}

// A full volume is its pod's error only: others write, the figures tell, it can grow, and another
// pod can have it.
func fullVolume(t *testing.T, d *disks) {
	d.apply(t, diskClaim("full", "disk", "320Mi", "")+diskClaim("roomy", "disk", "320Mi", "")+
		diskPod("full", ofClaim("full"), "")+diskPod("roomy", ofClaim("roomy"), ""))
	d.awaitReady(t, "full", "roomy")
	if out, err := d.tryKube("", "exec", "full", "--", "dd", "if=/dev/zero", "of=/data/ballast", "bs=65536"); err == nil ||
		!strings.Contains(out, "No space left on device") {
		t.Errorf("filling the volume: %v, %s", err, out)
	}
	d.in(t, "roomy", "echo words >/data/file")
	d.kube(t, "create", "serviceaccount", "reader")
	d.kube(t, "create", "clusterrolebinding", "reader", "--clusterrole", "system:kubelet-api-admin", "--serviceaccount", "default:reader")
	token := strings.TrimSpace(d.kube(t, "create", "token", "reader"))
	d.awaitTrue(t, "the figures tell that it is full", func() bool {
		capacity, _ := d.figure(t, token, "full", "capacity_bytes")
		available, ok := d.figure(t, token, "full", "available_bytes")
		return ok && capacity > 200<<20 && available < 4<<20
	}, d.story)
	d.remove(t, "pod", "full")
	d.apply(t, diskPod("full", ofClaim("full"), ""))
	d.awaitReady(t, "full")
	d.grow(t, "full", "512Mi")
	d.in(t, "full", "echo more >/data/file; sync")
}

// figure is a metric of the kubelet's about a claim's volume, if there is one. token is of someone
// who may read metrics.
func (d *disks) figure(t *testing.T, token, claim, metric string) (bytes float64, ok bool) {
	t.Helper()
	status, metrics, err := request("127.0.0.1:10250", "/metrics", token)
	if err != nil {
		t.Fatal(err)
	}
	if status != http.StatusOK { // the kubelet learns a moment later who may
		return 0, false
	}
	for line := range strings.Lines(metrics) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(name, "kubelet_volume_stats_"+metric+"{") ||
			!strings.Contains(name, fmt.Sprintf("persistentvolumeclaim=%q", claim)) {
			continue
		}
		bytes, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return bytes, true
	}
	return 0, false
}

// A driver that does not answer holds up the pod of its volume only, which says so.
func driverHangs(t *testing.T, d *disks) {
	d.apply(t, diskClaim("stuck", "disk", "320Mi", "")+diskClaim("free", "disk", "320Mi", ""))
	d.awaitBound(t, "stuck")
	volume := d.handle(t, "stuck")
	release := d.armForAll(t, "NodeStageVolume", volume)
	d.apply(t, diskPod("stuck", ofClaim("stuck"), ""))
	d.awaitTrue(t, "NodeStageVolume hangs", func() bool { return len(d.calls(t, "fault", "NodeStageVolume", volume)) > 0 }, d.story)
	d.apply(t, diskPod("free", ofClaim("free"), "")+diskPod("plain", "emptyDir: {}", ""))
	d.awaitReady(t, "free", "plain")
	d.awaitEvent(t, "stuck", "FailedMount", diskDriver)
	if got := d.kube(t, "get", "pod", "stuck", "-o", "jsonpath={.status.phase}"); got != "Pending" {
		t.Errorf("the pod of the volume that hangs is %s", got)
	}
	release()
	d.awaitReady(t, "stuck")

	// The end of a pod hangs, too; a force-deleted one is not forgotten.
	fault := d.arm(t, "NodeUnpublishVolume", diskFault{When: "before", Do: "hang", Volume: volume})
	d.kube(t, "delete", "pod", "stuck", "--force", "--grace-period=0")
	d.awaitReached(t, fault)
	d.remove(t, "pod", "free", "plain")
	d.release(t, fault)
}

// Errors of the driver are events of the pod, and it is tried again.
func driverRefuses(t *testing.T, d *disks) {
	const internal = 13
	d.apply(t, diskClaim("refused", "disk", "320Mi", ""))
	d.awaitBound(t, "refused")
	volume := d.handle(t, "refused")
	var faults []string
	for _, method := range []string{"ControllerPublishVolume", "NodeStageVolume", "NodeStageVolume", "NodePublishVolume"} {
		faults = append(faults, d.arm(t, method, diskFault{When: "before", Do: "error", Code: internal, Volume: volume}))
	}
	d.apply(t, diskPod("refused", ofClaim("refused"), ""))
	d.awaitEvent(t, "refused", "FailedAttachVolume", "ControllerPublishVolume fails as")
	d.awaitEvent(t, "refused", "FailedMount", "NodeStageVolume fails as")
	d.awaitEvent(t, "refused", "FailedMount", "NodePublishVolume fails as")
	d.awaitReady(t, "refused")
	for _, method := range []string{"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"} {
		faults = append(faults, d.arm(t, method, diskFault{When: "after", Do: "error", Code: internal, Volume: volume}))
	}
	d.remove(t, "pod", "refused")
	for _, fault := range faults {
		d.awaitReached(t, fault)
	}
}

// Pods keep their volumes while the driver is restarted, and others get theirs afterwards.
func driverRestarted(t *testing.T, d *disks) {
	d.apply(t, diskClaim("steady", "disk", "320Mi", "")+diskClaim("later", "disk", "320Mi", "")+diskPod("steady", ofClaim("steady"), ""))
	d.awaitReady(t, "steady")
	d.in(t, "steady", "echo words >/data/file")
	d.renewDriver(t)
	if got := d.in(t, "steady", "cat /data/file"); got != "words\n" {
		t.Errorf("after the driver's restart the pod has %q", got)
	}
	d.apply(t, diskPod("later", ofClaim("later"), ""))
	d.awaitReady(t, "later")
}

// A pod that ends while the driver is away leaves its volume to the driver's return: nothing is
// deleted below a mount, and no data are lost. So it is, too, if the kubelet was restarted
// meanwhile.
func driverAway(t *testing.T, d *disks) {
	d.apply(t, diskClaim("alone", "disk", "320Mi", "")+diskPod("alone", ofClaim("alone"), ""))
	d.awaitReady(t, "alone")
	d.in(t, "alone", "echo words >/data/file; sync")
	volume := d.handle(t, "alone")
	d.kube(t, "patch", "daemonset", "disk-node", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"nowhere":"yes"}}}}}`)
	d.awaitGone(t, "pods", "-l", "app=disk-node")
	d.awaitTrue(t, "the node has no driver", func() bool { return d.driversOfNode(t) == "" }, d.story)
	uid := d.kube(t, "get", "pod", "alone", "-o", "jsonpath={.metadata.uid}")
	d.kube(t, "delete", "pod", "alone", "--force", "--grace-period=0")
	if err := testkit.Kill(d.process(t, "coracle-kube")); err != nil {
		t.Fatal(err)
	}
	d.up(t)
	d.await(t, "wait", "node/boat", "--for=condition=Ready")
	d.awaitTrue(t, "the pod has ended", func() bool { return !slices.Contains(d.sandboxes(t), uid) }, d.story)
	if len(diskMounts(t)) == 0 {
		t.Error("without its driver a volume was unmounted")
	}
	if n := len(d.calls(t, "call", "NodeUnpublishVolume", volume)); n != 0 {
		t.Errorf("the driver that is away was called %d times", n)
	}
	d.kube(t, "patch", "daemonset", "disk-node", "--type=json", "-p", `[{"op":"remove","path":"/spec/template/spec/nodeSelector"}]`)
	d.awaitDriver(t)
	d.awaitTrue(t, "no mount is left", func() bool { return len(d.leftOnNode(t)) == 0 }, func() string { return fmt.Sprint(d.leftOnNode(t)) })
	d.apply(t, diskPod("alone", ofClaim("alone"), ""))
	d.awaitReady(t, "alone")
	if got := d.in(t, "alone", "cat /data/file"); got != "words\n" {
		t.Errorf("the next pod has %q", got)
	}
}
