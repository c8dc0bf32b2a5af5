//go:build csi

package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

// diskStep is one step of a volume's life, and the driver's calls in it.
type diskStep struct {
	methods []string
	begin   func(t *testing.T, d *disks)
	done    func(t *testing.T, d *disks)
}

// diskLife is a volume's life: made, used, grown, and used by another pod, which finds the first
// one's data.
var diskLife = []diskStep{
	{
		[]string{"CreateVolume"},
		func(t *testing.T, d *disks) { d.apply(t, diskClaim(d.life, "disk", "320Mi", "")) },
		func(t *testing.T, d *disks) { d.awaitBound(t, d.life) },
	},
	{
		[]string{"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"},
		func(t *testing.T, d *disks) { d.apply(t, diskPod(d.life+"-one", ofClaim(d.life), "")) },
		func(t *testing.T, d *disks) {
			d.awaitReady(t, d.life+"-one")
			d.in(t, d.life+"-one", "echo words >/data/file; sync")
		},
	},
	{
		[]string{"ControllerExpandVolume", "NodeExpandVolume"},
		func(t *testing.T, d *disks) {
			d.kube(t, "patch", "pvc", d.life, "-p", `{"spec":{"resources":{"requests":{"storage":"512Mi"}}}}`)
		},
		func(t *testing.T, d *disks) {
			d.grow(t, d.life, "512Mi")
			d.awaitReady(t, d.life+"-one")
			d.awaitTrue(t, "the file system has grown", func() bool { return d.sizeIn(t, d.life+"-one") > 400<<10 }, d.story)
		},
	},
	{
		[]string{"CreateSnapshot"},
		func(t *testing.T, d *disks) {
			d.apply(t, fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %[1]s}
spec: {volumeSnapshotClassName: disk, source: {persistentVolumeClaimName: %[1]s}}
`, d.life))
		},
		func(t *testing.T, d *disks) {
			d.await(t, "wait", "volumesnapshot/"+d.life, "--for=jsonpath={.status.readyToUse}=true")
		},
	},
	{
		[]string{"DeleteSnapshot"},
		func(t *testing.T, d *disks) { d.kube(t, "delete", "volumesnapshot", d.life, "--wait=false") },
		func(t *testing.T, d *disks) { d.await(t, "wait", "volumesnapshot/"+d.life, "--for=delete") },
	},
	{
		[]string{"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"},
		func(t *testing.T, d *disks) { d.kube(t, "delete", "pod", d.life+"-one", "--wait=false") },
		func(t *testing.T, d *disks) {
			d.await(t, "wait", "pod/"+d.life+"-one", "--for=delete")
			d.awaitGone(t, "volumeattachments")
			if left := d.leftOnNode(t); len(left) > 0 {
				t.Errorf("detached, and these are left: %v", left)
			}
		},
	},
	{
		nil,
		func(t *testing.T, d *disks) { d.apply(t, diskPod(d.life+"-two", ofClaim(d.life), "")) },
		func(t *testing.T, d *disks) {
			d.awaitReady(t, d.life+"-two")
			if got := d.in(t, d.life+"-two", "cat /data/file"); got != "words\n" {
				t.Errorf("the next pod has %q", got)
			}
			d.remove(t, "pod", d.life+"-two")
		},
	},
	{
		[]string{"DeleteVolume"},
		func(t *testing.T, d *disks) { d.kube(t, "delete", "pvc", d.life, "--wait=false") },
		func(t *testing.T, d *disks) { d.awaitNothingLeft(t) },
	},
}

// eachCall lives a volume's life once for each call of the driver, and for the moments before and
// after it did its work. hit is called when the call has reached the fault.
func eachCall(t *testing.T, do string, except []string, prepare func(t *testing.T, d *disks),
	hit func(t *testing.T, d *disks, fault string),
) {
	d := newDisks(t)
	ran, reached := 0, 0
	var points []string
	for _, step := range diskLife {
		for _, method := range step.methods {
			if slices.Contains(except, method) {
				continue
			}
			points = append(points, method+"/before", method+"/after")
		}
	}
	for _, point := range points {
		method, when, _ := strings.Cut(point, "/")
		ok := t.Run(point, func(t *testing.T) {
			ran++
			// No two have the same name: the sidecars stay away for up to a minute when the API was gone
			// several times. To the resizer, a claim that took another's name meanwhile, and asks for
			// the size that that one had, has not changed.
			d.life = fmt.Sprintf("life-%d", ran)
			prepare(t, d)
			for _, step := range diskLife {
				if !slices.Contains(step.methods, method) {
					step.begin(t, d)
					step.done(t, d)
					continue
				}
				fault := d.arm(t, method, diskFault{When: when, Do: do})
				step.begin(t, d)
				d.awaitReached(t, fault)
				reached++
				hit(t, d, fault)
				step.done(t, d)
			}
			if t.Failed() {
				t.Log(d.story())
			}
		})
		if !ok {
			d.showDriver(t)
			d.clear(t)
		}
	}
	if reached == 0 || reached != ran {
		t.Errorf("%d of %d faults were reached", reached, ran)
	}
}

// kill -9 of the cluster process while it waits for an answer of the driver loses nothing: it goes
// on after its start, and at the end nothing is left.
func TestCSIKills(t *testing.T) {
	eachCall(t, "hang", nil, func(*testing.T, *disks) {}, func(t *testing.T, d *disks, fault string) {
		if err := testkit.Kill(d.process(t, "coracle-kube")); err != nil {
			t.Fatal(err)
		}
		// The driver goes on, and its answer reaches no one.
		d.release(t, fault)
		d.up(t)
	})
}

// A driver that dies at a call is restarted, and all is done as without that. The driver's pods are
// others for each life, so that no restart waits for its turn.
func TestCSIDriverDies(t *testing.T) {
	eachCall(t, "die", nil, func(t *testing.T, d *disks) { d.renewDriver(t) }, func(t *testing.T, d *disks, _ string) {
		d.awaitTrue(t, "the driver's container is restarted", func() bool {
			counts := d.kube(t, "get", "pods", "-l", "app in (disk-controller, disk-node)", "-o",
				`jsonpath={.items[*].status.containerStatuses[?(@.name=="driver")].restartCount}`)
			return strings.ContainsAny(counts, "123456789")
		}, d.story)
	})
}
