package attachdetach

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ktesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

// Other objects of the same name, and other names, are not ours.
func TestForeignAttachments(t *testing.T) {
	foreign := func(w world, name, node, pv string) {
		must(w.Kube.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
			},
			Status: storagev1.VolumeAttachmentStatus{Attached: true},
		}, metav1.CreateOptions{}))
	}
	freed := func(w world) { // its name is free, and ours is made
		w.t.Helper()
		w.check(w.Kube.StorageV1().VolumeAttachments().Delete(ctx, attachmentOf("disk", "a"), metav1.DeleteOptions{}))
		w.Settle()
		w.expect("deleted", "disk a waits")
	}
	t.Run("same name", func(t *testing.T) {
		run(t, func(w world) {
			w.node("a")
			foreign(w, attachmentOf("disk", "a"), "a", "pv-other")
			w.volume("disk")
			w.volume("other")
			w.pod("p", "a", "disk")
			w.Pass(time.Hour)
			w.expect("taken", "other a attached")
			w.expectReports("taken", "a")
			want := fmt.Sprintf(`Warning FailedAttachVolume AttachVolume.Attach failed for volume "pv-disk" : VolumeAttachment %s is of PersistentVolume "pv-other", `+
				`node "a" and attacher %q: delete it to have this volume attached`, attachmentOf("disk", "a"), driver)
			if got := w.events(); !slices.Equal(got, []string{want}) {
				t.Errorf("events %q, want %q", got, want)
			}
			freed(w)
		})
	})
	t.Run("same name, not seen yet", func(t *testing.T) {
		run(t, func(w world) {
			w.node("a")
			w.volume("disk")
			w.volume("other")
			created := 0
			kube.PrependReactor("create", "volumeattachments", func(ktesting.Action) (bool, runtime.Object, error) {
				if created++; created == 1 {
					foreign(w, attachmentOf("disk", "a"), "a", "pv-other")
				}
				return false, nil, nil
			})
			w.pod("p", "a", "disk")
			if created != 1 {
				t.Errorf("asked %d times", created)
			}
			w.expectReports("taken", "a")
			if got := w.events(); len(got) != 1 || !strings.Contains(got[0], "delete it") {
				t.Errorf("events %q", got)
			}
			freed(w)
		})
	})
	for state, attached := range map[string]bool{"waits": false, "attached": true} {
		t.Run("same name, of a volume that is not seen before its kubelet waits, "+state, func(t *testing.T) {
			run(t, func(w world) {
				w.node("a")
				foreign(w, attachmentOf("disk", "a"), "a", "pv-other")
				client := w.Kube.StorageV1().VolumeAttachments()
				a := must(client.Get(ctx, attachmentOf("disk", "a"), metav1.GetOptions{}))
				a.Status.Attached = attached
				must(client.UpdateStatus(ctx, a, metav1.UpdateOptions{}))
				w.volume("disk")
				w.pod("p", "a", "disk")
				w.uses("a", "disk")
				w.Pass(settle / 2)
				w.expectReports("not seen", "a")
				w.volume("other")
				w.Pass(time.Hour)
				w.expectReports("seen", "a")
				w.expect("left alone", "other a "+state)
			})
		})
	}
	t.Run("same name, of a volume that is not seen yet", func(t *testing.T) {
		run(t, func(w world) {
			w.node("a")
			foreign(w, attachmentOf("disk", "a"), "a", "pv-other")
			w.volume("disk")
			w.pod("p", "a", "disk")
			if got := w.events(); len(got) != 0 {
				t.Errorf("events %q before it is known whose the attachment is", got)
			}
			w.volume("other")
			if got := w.events(); len(got) != 1 || !strings.Contains(got[0], "delete it") {
				t.Errorf("events %q", got)
			}
			freed(w)
		})
	})
	t.Run("other name", func(t *testing.T) {
		run(t, func(w world) {
			w.node("a")
			w.volume("disk")
			foreign(w, "e2e-attachment", "a", "pv-disk")
			w.Pass(time.Hour)
			w.expect("left alone", "disk a attached")
			w.expectReports("left alone", "a")
		})
	})
}

// renewed makes the PersistentVolume of a handle again under another name, after it was removed by
// force.
func (w world) renewed(handle string) {
	w.t.Helper()
	w.Pass(settle) // or its attachment may be of a volume that is not seen yet
	old := must(w.Kube.CoreV1().PersistentVolumes().Get(ctx, "pv-"+handle, metav1.GetOptions{}))
	w.check(w.Kube.CoreV1().PersistentVolumes().Delete(ctx, old.Name, metav1.DeleteOptions{}))
	w.check(w.Kube.CoreV1().PersistentVolumeClaims(apitest.Namespace).Delete(ctx, handle, metav1.DeleteOptions{}))
	w.Settle()
	c := claim(handle, types.UID("claim-"+handle))
	c.Spec.VolumeName = "pv-renewed"
	must(w.Kube.CoreV1().PersistentVolumeClaims(apitest.Namespace).Create(ctx, c, metav1.CreateOptions{}))
	old.Name, old.UID, old.ResourceVersion = "pv-renewed", "", ""
	must(w.Kube.CoreV1().PersistentVolumes().Create(ctx, old, metav1.CreateOptions{}))
	w.Settle()
}

// The attachment of a PersistentVolume that is gone keeps others from the volume while it is there,
// although another PersistentVolume is that volume now.
func TestAttachmentOfVolumeThatIsGone(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.node("b")
		w.volume("disk")
		pod := w.pod("p", "a", "disk")
		w.attacher()
		w.uses("a", "disk")
		w.renewed("disk")
		w.force(pod)
		w.uses("a")
		w.expect("unmounted", "disk a leaves")
		w.pod("other", "b", "disk")
		w.expect("not detached yet", "disk a leaves")
		w.attacher()
		w.expect("detached", "renewed b waits")
	})
}

// An attachment of a PersistentVolume that is gone is replaced when the node does not use it.
func TestAttachmentIsMadeAgainForItsNewVolume(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.volume("disk")
		w.pod("p", "a", "disk")
		w.attacher()
		w.uses("a", "disk")
		w.renewed("disk")
		w.expect("in use", "disk a attached")
		w.uses("a")
		w.expect("unmounted", "disk a leaves")
		w.attacher()
		w.expect("made again", "renewed a waits")
	})
}

// An attachment whose PersistentVolume and Node were both removed by force is deleted. Those of
// others are left alone.
func TestAttachmentWithoutVolumeAndNode(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.volume("disk")
		w.pod("p", "a", "disk")
		w.attacher()
		w.uses("a", "disk")
		gone := "pv-gone"
		for name, source := range map[string]storagev1.VolumeAttachmentSource{
			"csi-attachment":              {PersistentVolumeName: &gone},
			attachmentOf("inline", "a"):   {InlineVolumeSpec: &corev1.PersistentVolumeSpec{}},
			attachmentOf("x", "a") + "00": {PersistentVolumeName: &gone},
		} {
			must(w.Kube.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "a", Source: source},
			}, metav1.CreateOptions{}))
		}
		others := []string{"? a waits", "gone a waits", "gone a waits"}
		w.check(w.Kube.CoreV1().PersistentVolumes().Delete(ctx, "pv-disk", metav1.DeleteOptions{}))
		w.check(w.Kube.CoreV1().PersistentVolumeClaims(apitest.Namespace).Delete(ctx, "disk", metav1.DeleteOptions{}))
		w.check(w.Kube.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}))
		w.Pass(forceAfter - time.Second)
		w.expect("before the time is over", slices.Concat(others[:1], []string{"disk a attached"}, others[1:])...)
		w.Pass(2 * time.Second)
		w.expect("after it", slices.Concat(others[:1], []string{"disk a leaves"}, others[1:])...)
		w.attacher()
		w.Pass(time.Hour)
		if got := len(w.attachments()); got != len(others) {
			t.Errorf("there are %q", w.attachments())
		}
	})
}

// An attachment that was never made true, of a PersistentVolume that is gone, does not keep a pod
// waiting for ever: its kubelet reports the volume in use because it waits.
func TestUnattachedAttachmentIsMadeAgainForItsNewVolume(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.volume("disk")
		w.pod("p", "a", "disk")
		w.expect("first", "disk a waits")
		w.renewed("disk")
		w.uses("a", "disk")
		w.Pass(time.Minute)
		w.expect("replaced", "renewed a waits")
		for _, event := range w.events() {
			if strings.Contains(event, "delete it") {
				t.Errorf("event %q", event)
			}
		}
		w.attacher()
		w.expectReports("attached", "a", "disk")
	})
}
