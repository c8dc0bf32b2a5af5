package attachdetach

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

// The life of an attachment: made for a pod, reported on its node, kept while the node uses the
// volume, and taken out of the report before it is deleted.
func TestAttachmentFollowsPod(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.Settle()
		if current != nil {
			t.Fatal("the controller has started without a CSI volume")
		}
		w.volume("disk")
		w.Settle()
		if current == nil {
			t.Fatal("the controller has not started with a CSI volume")
		}
		w.expect("no pod")
		pod := w.pod("p", "a", "disk")
		w.expect("pod on its node", "disk a waits")
		w.expectReports("attachment waits", "a")
		made := must(w.Kube.StorageV1().VolumeAttachments().Get(ctx, attachmentOf("disk", "a"), metav1.GetOptions{}))
		if made.Spec.Attacher != driver {
			t.Errorf("attacher %q", made.Spec.Attacher)
		}
		w.attacher()
		w.expect("attacher", "disk a attached")
		w.expectReports("attached", "a", "disk")
		if got, want := w.events(),
			[]string{`Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume "pv-disk" `}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		w.uses("a", "disk")
		w.force(pod)
		w.Pass(time.Hour)
		w.expect("deleted by force, still mounted", "disk a attached")
		w.expectReports("deleted by force, still mounted", "a", "disk")

		w.Writes()
		kube.ClearActions()
		w.uses("a")
		w.expect("unmounted", "disk a leaves")
		w.expectReports("unmounted", "a")
		var order []string
		for _, action := range kube.Actions() {
			if action.GetVerb() != "create" && action.GetVerb() != "list" && action.GetVerb() != "watch" {
				order = append(order, action.GetVerb()+" "+action.GetResource().Resource)
			}
		}
		if want := []string{"patch nodes", "delete volumeattachments"}; !slices.Equal(order, want) {
			t.Errorf("did %q, want %q", order, want)
		}
		w.attacher()
		w.expect("detached")
		if n := len(current.told) + len(current.overdue); n > 0 {
			t.Errorf("%d things are kept in memory", n)
		}
	})
}

// The names are part of the contract with attachers and kubelets: the value is upstream's for the
// same input.
func TestNames(t *testing.T) {
	v := volume{driver: "hostpath.csi.k8s.io", handle: "a^b"}
	if got, want := v.attachment("node"), "csi-5e18d44f41882bdde3b6cafe4b92e7e3d6b4f3bfa57207deeb3f1ba8c8d34eed"; got != want {
		t.Errorf("attachment %s, want %s", got, want)
	}
	if got, want := string(v.unique()), "kubernetes.io/csi/hostpath.csi.k8s.io^a^b"; got != want {
		t.Errorf("unique name %s, want %s", got, want)
	}
	if got, ok := parse(v.unique()); !ok || got != v {
		t.Errorf("parsed %v, %v", got, ok)
	}
	for _, other := range []corev1.UniqueVolumeName{"kubernetes.io/csi/x", "kubernetes.io/nfs/a^b", ""} {
		if got, ok := parse(other); ok {
			t.Errorf("parsed %q as %v", other, got)
		}
	}
}

// A pod whose volume is on another node waits, is told by whom, and gets it when that node has let
// go.
func TestVolumeOfAnotherNode(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.node("b")
		w.volume("disk")
		first := w.pod("first", "a", "disk")
		w.attacher()
		w.uses("a", "disk")
		second := w.pod("second", "b", "disk")
		w.Pass(time.Hour)
		w.expect("two pods", "disk a attached")
		told := `Warning FailedAttachVolume Multi-Attach error for volume "pv-disk" Volume is already used by pod(s) first`
		if got := w.events(); !slices.Equal(got[1:], []string{told}) {
			t.Errorf("events %q, want %q once", got[1:], told)
		}
		w.force(first)
		w.expect("first pod gone, its volume mounted", "disk a attached")
		w.uses("a")
		w.expect("unmounted", "disk a leaves")
		w.attacher()
		w.expect("detached", "disk b waits")
		w.attacher()
		w.expect("moved", "disk b attached")
		w.expectReports("moved", "a")
		w.expectReports("moved", "b", "disk")
		got := w.events()[2:]
		want := []string{`Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume "pv-disk" `}
		if !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		w.force(second)
		w.attacher()
		w.expect("no pods")
	})
}

// Pods in other namespaces are counted, not named.
func TestNamesOfPodsStayInTheirNamespace(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.node("b")
		w.volume("disk")
		// Another PersistentVolume is the same volume, for a claim of another namespace.
		c := claim("disk", "claim-elsewhere")
		c.Namespace, c.Spec.VolumeName = "elsewhere", "pv-elsewhere"
		must(w.Kube.CoreV1().PersistentVolumeClaims("elsewhere").Create(ctx, c, metav1.CreateOptions{}))
		pv := must(w.Kube.CoreV1().PersistentVolumes().Get(ctx, "pv-disk", metav1.GetOptions{}))
		pv.Name, pv.UID, pv.ResourceVersion = "pv-elsewhere", "", ""
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "elsewhere", Name: "disk", UID: "claim-elsewhere"}
		must(w.Kube.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}))
		foreign := w.pod("template", "", "disk")
		foreign.Name, foreign.Namespace, foreign.UID, foreign.ResourceVersion, foreign.Spec.NodeName = "secret-name", "elsewhere", "", "", "a"
		must(w.Kube.CoreV1().Pods("elsewhere").Create(ctx, foreign, metav1.CreateOptions{}))
		w.Settle()
		w.attacher()
		w.pod("p", "b", "disk")
		want := `Warning FailedAttachVolume Multi-Attach error for volume "pv-disk" Volume is already used by 1 pod(s) in different namespaces`
		if got := w.events(); !slices.Equal(got, []string{want}) {
			t.Errorf("events %q, want %q", got, want)
		}
	})
}

// What several nodes may have is attached to all of them at once.
func TestSharedVolume(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.node("b")
		w.volume("share", corev1.ReadWriteMany)
		w.pod("first", "a", "share")
		w.pod("second", "b", "share")
		w.expect("two pods", "share a waits", "share b waits")
	})
}

// Of two pods that come at once, the older one gets the volume, and it is not attached twice
// although the first attachment is not in the cache yet.
func TestTwoPodsAtOnce(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.node("b")
		w.pod("first", "b", "disk")
		w.Pass(time.Second)
		w.pod("second", "a", "disk")
		w.volume("disk")
		w.Settle()
		w.expect("two pods", "disk b waits")
	})
}

// Nodes that do not let go of a volume.
func TestNodesThatHoldVolumes(t *testing.T) {
	held := func(t *testing.T, f func(w world)) {
		run(t, func(w world) {
			w.node("a")
			w.volume("disk")
			pod := w.pod("p", "a", "disk")
			w.attacher()
			w.uses("a", "disk")
			w.force(pod)
			w.expect("held", "disk a attached")
			f(w)
		})
	}
	t.Run("ready", func(t *testing.T) {
		held(t, func(w world) {
			w.Pass(24 * time.Hour)
			w.expect("a day later", "disk a attached")
		})
	})
	t.Run("not ready", func(t *testing.T) {
		held(t, func(w world) {
			w.Pass(time.Hour)
			w.ready("a", corev1.ConditionUnknown)
			w.Pass(forceAfter - time.Second)
			w.expect("before the time is over", "disk a attached")
			w.Pass(2 * time.Second)
			w.expect("after it", "disk a leaves")
			w.expectReports("after it", "a")
		})
	})
	t.Run("not ready, then ready in time", func(t *testing.T) {
		held(t, func(w world) {
			for range 3 {
				w.ready("a", corev1.ConditionUnknown)
				w.Pass(forceAfter - time.Second)
				w.ready("a", corev1.ConditionTrue)
				w.Pass(time.Minute)
			}
			w.expect("three times", "disk a attached")
			if len(current.overdue) > 0 {
				w.t.Errorf("kept %v", current.overdue)
			}
		})
	})
	t.Run("not ready, restarts", func(t *testing.T) {
		held(t, func(w world) {
			w.ready("a", corev1.ConditionUnknown)
			w.Pass(forceAfter - time.Second)
			w.Restart()
			w.Pass(forceAfter - time.Second)
			w.expect("the time begins again", "disk a attached")
			w.Pass(2 * time.Second)
			w.expect("after it", "disk a leaves")
		})
	})
	t.Run("out of service", func(t *testing.T) {
		held(t, func(w world) {
			w.ready("a", corev1.ConditionUnknown)
			w.expect("not ready", "disk a attached")
			w.taint("a")
			w.expect("out of service", "disk a leaves")
			w.attacher()
			// What the node last said does not keep others from the volume.
			w.node("b")
			w.pod("other", "b", "disk")
			w.expect("used elsewhere", "disk b waits")
		})
	})
	t.Run("gone", func(t *testing.T) {
		held(t, func(w world) {
			w.check(w.Kube.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}))
			w.Pass(forceAfter - time.Second)
			w.expect("before the time is over", "disk a attached")
			w.Pass(2 * time.Second)
			w.expect("after it", "disk a leaves")
		})
	})
	t.Run("made again", func(t *testing.T) {
		held(t, func(w world) {
			w.check(w.Kube.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}))
			w.Pass(time.Minute)
			w.node("a") // its first status says nothing
			w.Pass(settle - time.Second)
			w.expect("nothing said", "disk a attached")
			w.expectReports("nothing said", "a", "disk")
			w.uses("a", "disk")
			w.Pass(time.Hour)
			w.expect("in use", "disk a attached")
			w.uses("a")
			w.expect("unmounted", "disk a leaves")
		})
	})
	t.Run("made again, does not use it", func(t *testing.T) {
		held(t, func(w world) {
			w.check(w.Kube.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}))
			w.Pass(time.Minute)
			w.node("a")
			w.Pass(settle + time.Second)
			w.expect("settled", "disk a leaves")
		})
	})
	t.Run("attachment removed by force", func(t *testing.T) {
		held(t, func(w world) {
			w.removed("disk", "a")
			w.node("b")
			w.pod("other", "b", "disk")
			w.expect("still mounted on a")
			// A node that does not answer keeps the volume as long as it would keep an attachment.
			w.ready("a", corev1.ConditionUnknown)
			w.Pass(time.Second)
			w.expect("not ready for a second")
			w.ready("a", corev1.ConditionTrue)
			w.Pass(time.Hour)
			w.ready("a", corev1.ConditionUnknown)
			w.Pass(forceAfter - time.Second)
			w.expect("before the time is over")
			w.ready("a", corev1.ConditionTrue)
			w.uses("a")
			w.expect("unmounted", "disk b waits")
		})
	})
	t.Run("attachment removed by force, not ready", func(t *testing.T) {
		held(t, func(w world) {
			w.removed("disk", "a")
			w.node("b")
			w.pod("other", "b", "disk")
			w.ready("a", corev1.ConditionUnknown)
			w.Pass(forceAfter - time.Second)
			w.expect("before the time is over")
			w.Pass(2 * time.Second)
			w.expect("after it", "disk b waits")
		})
	})
	t.Run("attachment removed by force, out of service", func(t *testing.T) {
		held(t, func(w world) {
			w.removed("disk", "a")
			w.node("b")
			w.pod("other", "b", "disk")
			w.expect("still mounted on a")
			w.taint("a")
			w.expect("out of service", "disk b waits")
		})
	})
	t.Run("detached by force", func(t *testing.T) {
		held(t, func(w world) {
			w.node("b")
			w.pod("other", "b", "disk")
			w.ready("a", corev1.ConditionUnknown)
			w.Pass(forceAfter + time.Second)
			w.expect("by force", "disk a leaves")
			w.Pass(time.Hour)
			w.attacher()
			w.expect("not another six minutes", "disk b waits")
		})
	})
	t.Run("made again in the second of the attachment", func(t *testing.T) {
		held(t, func(w world) {
			a := must(w.Kube.StorageV1().VolumeAttachments().Get(ctx, attachmentOf("disk", "a"), metav1.GetOptions{}))
			node := must(w.Kube.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{}))
			w.check(w.Kube.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}))
			node.UID, node.ResourceVersion, node.CreationTimestamp, node.Status.VolumesInUse = "", "", a.CreationTimestamp, nil
			must(w.Kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}))
			w.Pass(settle / 2)
			w.expect("nothing said", "disk a attached")
			w.Pass(settle)
			w.expect("settled", "disk a leaves")
		})
	})
}

// removed removes an attachment by force.
func (w world) removed(handle, node string) {
	w.t.Helper()
	client := w.Kube.StorageV1().VolumeAttachments()
	a := must(client.Get(ctx, attachmentOf(handle, node), metav1.GetOptions{}))
	a.Finalizers = nil
	must(client.Update(ctx, a, metav1.UpdateOptions{}))
	w.check(client.Delete(ctx, a.Name, metav1.DeleteOptions{}))
	w.Settle()
}

// The kubelet reports that it uses a volume while this controller takes it out of its report: the
// volume stays attached, and is reported again.
func TestKubeletIsFaster(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.volume("disk")
		pod := w.pod("p", "a", "disk")
		w.attacher()
		raced := 0
		kube.PrependReactor("patch", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
			if raced++; raced == 1 {
				node := must(w.Kube.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{}))
				node.Status.VolumesInUse = []corev1.UniqueVolumeName{unique("disk")}
				must(w.Kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}))
			}
			return false, nil, nil
		})
		w.force(pod)
		w.Pass(time.Minute)
		if raced != 2 {
			t.Errorf("the node was written %d times, want 2: without the volume and with it again", raced)
		}
		w.expect("in use", "disk a attached")
		w.expectReports("in use", "a", "disk")
		w.uses("a")
		w.expect("unmounted", "disk a leaves")
	})
}

// Volumes that nothing attaches.
func TestNotAttached(t *testing.T) {
	for name, prepare := range map[string]func(w world){
		"driver does not attach": func(w world) {
			must(w.Kube.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
				ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
			}, metav1.CreateOptions{}))
			w.volume("disk")
			w.pod("p", "a", "disk")
		},
		"claim made again": func(w world) {
			w.volume("disk")
			w.check(w.Kube.CoreV1().PersistentVolumeClaims(apitest.Namespace).Delete(ctx, "disk", metav1.DeleteOptions{}))
			must(w.Kube.CoreV1().PersistentVolumeClaims(apitest.Namespace).Create(ctx, claim("disk", "another"), metav1.CreateOptions{}))
			w.pod("p", "a", "disk")
		},
		"claim of another pod's ephemeral volume": func(w world) {
			w.volume("p-scratch")
			pod := w.pod("template", "")
			pod.Name, pod.UID, pod.ResourceVersion, pod.Spec.NodeName = "p", "", "", "a"
			pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
			must(w.Kube.CoreV1().Pods(apitest.Namespace).Create(ctx, pod, metav1.CreateOptions{}))
		},
		"inline volume": func(w world) {
			w.volume("disk") // the controller runs
			pod := w.pod("template", "")
			pod.Name, pod.UID, pod.ResourceVersion, pod.Spec.NodeName = "p", "", "", "a"
			pod.Spec.Volumes = []corev1.Volume{{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}}}
			must(w.Kube.CoreV1().Pods(apitest.Namespace).Create(ctx, pod, metav1.CreateOptions{}))
		},
		"pod has ended": func(w world) {
			w.volume("disk")
			w.End(w.t, w.pod("p", "", "disk"), 0)
			pod := must(w.Kube.CoreV1().Pods(apitest.Namespace).Get(ctx, "p", metav1.GetOptions{}))
			w.SetPod(w.t, pod, func(p *corev1.Pod) { p.Spec.NodeName = "a" })
		},
		"node does not exist": func(w world) {
			w.volume("disk")
			w.pod("p", "nowhere", "disk")
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w world) {
				w.node("a")
				prepare(w)
				w.Pass(time.Minute)
				if current == nil {
					t.Error("the controller does not run")
				}
				w.expect(name)
			})
		})
	}
	// And those for which that changes.
	t.Run("driver says so later", func(t *testing.T) {
		run(t, func(w world) {
			w.node("a")
			w.volume("disk")
			w.pod("p", "a", "disk")
			w.expect("no object of the driver", "disk a waits")
			must(w.Kube.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
				ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
			}, metav1.CreateOptions{}))
			w.Settle()
			w.expect("it does not attach")
			w.check(w.Kube.StorageV1().CSIDrivers().Delete(ctx, driver, metav1.DeleteOptions{}))
			w.Settle()
			w.expect("unknown again", "disk a waits")
		})
	})
	t.Run("driver says so later, its volume in use", func(t *testing.T) {
		run(t, func(w world) {
			w.node("a")
			w.volume("disk")
			w.volume("attached")
			w.pod("p", "a", "attached")
			w.attacher()
			w.pod("q", "a", "disk")
			w.uses("a", "attached", "disk") // the kubelet waits for one of them
			must(w.Kube.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
				ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
			}, metav1.CreateOptions{}))
			w.Settle()
			w.expect("the one that was never attached is gone", "attached a attached")
			w.expectReports("mounted", "a", "attached")
			w.uses("a", "disk")
			w.expect("unmounted", "attached a leaves")
		})
	})
	t.Run("node comes later", func(t *testing.T) {
		run(t, func(w world) {
			w.volume("disk")
			w.pod("p", "a", "disk")
			w.expect("no node")
			w.node("a")
			w.Settle()
			w.expect("node", "disk a waits")
		})
	})
}

// A driver's error is told to the pod, once each time that it happens, and not at any length.
func TestDriversErrors(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.volume("disk")
		w.pod("p", "a", "disk")
		fail := func(message string) {
			client := w.Kube.StorageV1().VolumeAttachments()
			a := must(client.Get(ctx, attachmentOf("disk", "a"), metav1.GetOptions{}))
			a.Status.AttachError = &storagev1.VolumeError{Time: metav1.Now(), Message: message}
			must(client.UpdateStatus(ctx, a, metav1.UpdateOptions{}))
			w.Pass(time.Minute)
		}
		fail("no such disk")
		w.uses("a") // an event of no interest
		if got, want := w.events(),
			[]string{`Warning FailedAttachVolume AttachVolume.Attach failed for volume "pv-disk" : no such disk`}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		fail(strings.Repeat("ä", 100_000))
		if got := w.events(); len(got) != 2 || len(got[1]) > 2*maxMessage || !strings.HasSuffix(got[1], "ä…") {
			t.Errorf("%d events, the last of %d bytes", len(got), len(got[len(got)-1]))
		}
		w.attacher()
		w.expect("attached", "disk a attached")
		if got := w.events(); len(got) != 3 || !strings.Contains(got[2], "succeeded") {
			t.Errorf("events %.200q", got)
		}
	})
}

// A PersistentVolume that was removed by force, with its finalizers, does not keep its attachment,
// but a node that uses the volume does.
func TestVolumeThatIsGone(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.volume("disk")
		pod := w.pod("p", "a", "disk")
		w.attacher()
		w.uses("a", "disk")
		w.check(w.Kube.CoreV1().PersistentVolumes().Delete(ctx, "pv-disk", metav1.DeleteOptions{}))
		w.check(w.Kube.CoreV1().PersistentVolumeClaims(apitest.Namespace).Delete(ctx, "disk", metav1.DeleteOptions{}))
		w.Pass(time.Hour)
		w.expect("mounted", "disk a attached")
		w.expectReports("mounted", "a", "disk")
		w.force(pod)
		w.Restart()
		// The first deletion fails. What only the node knows is not forgotten by that.
		refused := 0
		w.Refuse(func(verb, resource string) error {
			if verb == "delete" && refused == 0 {
				refused++
				return apierrors.NewInternalError(errors.New("not now"))
			}
			return nil
		})
		w.uses("a")
		w.Restart()
		if refused != 1 {
			t.Errorf("%d deletions were refused", refused)
		}
		w.expect("unmounted", "disk a leaves")
		w.attacher()
		w.expect("detached")
		w.expectReports("detached", "a")
	})
}

// What nodes report without an attachment, as after a crash between two writes, is corrected at
// start, also if no volume of a driver is left.
func TestReportsAreCorrectedAtStart(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.status("a", func(s *corev1.NodeStatus) {
			s.VolumesAttached = []corev1.AttachedVolume{{Name: "example.org/other"}, {Name: unique("gone")}}
		})
		w.Restart()
		node := must(w.Kube.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{}))
		if got := node.Status.VolumesAttached; len(got) != 1 || got[0].Name != "example.org/other" {
			t.Errorf("the node reports %v", got)
		}
	})
}

// A write that is refused is tried again.
func TestRefusedWrites(t *testing.T) {
	for _, refused := range []string{"create volumeattachments", "patch nodes/status", "delete volumeattachments"} {
		t.Run(refused, func(t *testing.T) {
			run(t, func(w world) {
				w.node("a")
				w.volume("disk")
				times := 0
				w.Refuse(func(verb, resource string) error {
					if verb+" "+resource != refused || times >= 3 {
						return nil
					}
					times++
					if times == 1 {
						return apierrors.NewConflict(schema.GroupResource{Resource: resource}, "x", errors.New("changed"))
					}
					return apierrors.NewServiceUnavailable("not now")
				})
				pod := w.pod("p", "a", "disk")
				w.Pass(time.Minute)
				w.attacher()
				w.Pass(time.Minute)
				w.expect("attached", "disk a attached")
				w.expectReports("attached", "a", "disk")
				w.force(pod)
				w.Pass(time.Minute)
				w.attacher()
				w.expect("detached")
				w.expectReports("detached", "a")
				if times != 3 {
					t.Errorf("refused %d times", times)
				}
			})
		})
	}
}

// Kubelets report volumes that they wait for as in use. Nodes that wait do not keep each other from
// the volume.
func TestNodesThatWaitReportUse(t *testing.T) {
	run(t, func(w world) {
		for _, node := range []string{"a", "b", "c"} {
			w.node(node)
		}
		w.volume("disk")
		first := w.pod("first", "a", "disk")
		w.attacher()
		w.uses("a", "disk")
		w.pod("second", "c", "disk")
		w.Pass(time.Second)
		w.pod("third", "b", "disk")
		w.uses("b", "disk")
		w.uses("c", "disk")
		w.expect("three pods", "disk a attached")
		w.force(first)
		w.uses("a")
		w.attacher()
		w.expect("the older pod's node gets it", "disk c waits")
	})
}

// The node is written before each deletion, also if its cached status has the right list already.
func TestNodeIsWrittenBeforeDeletion(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.volume("disk")
		pod := w.pod("p", "a", "disk")
		w.expect("not attached yet", "disk a waits")
		written := false
		kube.PrependReactor("patch", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
			written = true
			return false, nil, nil
		})
		kube.PrependReactor("delete", "volumeattachments", func(ktesting.Action) (bool, runtime.Object, error) {
			if !written {
				t.Error("deleted before the node was written")
			}
			return false, nil, nil
		})
		w.force(pod)
		w.expect("pod gone")
	})
}

// The API server does not say whether it has made an attachment. The volume goes to no other node
// before that is known, although the cache does not show the attachment.
func TestAttachmentThatMayHaveBeenMade(t *testing.T) {
	for name, made := range map[string]bool{"made": true, "not made": false} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w world) {
				shown := make(chan struct{})
				show := sync.OnceFunc(func() { close(shown) })
				defer show()
				seen = func() { <-shown }
				w.node("a")
				w.node("b")
				first := w.pod("first", "a", "disk")
				w.Pass(time.Second)
				w.pod("second", "b", "disk")
				client := w.Kube.StorageV1().VolumeAttachments()
				tries, asked := 0, 0
				kube.PrependReactor("create", "volumeattachments", func(action ktesting.Action) (bool, runtime.Object, error) {
					if tries++; tries > 1 {
						return false, nil, nil
					}
					if made {
						must(client.Create(ctx, action.(ktesting.CreateAction).GetObject().(*storagev1.VolumeAttachment), metav1.CreateOptions{}))
					}
					pod := must(w.Kube.CoreV1().Pods(apitest.Namespace).Get(ctx, first.Name, metav1.GetOptions{}))
					pod.Status.Phase = corev1.PodSucceeded
					pod.Status.ContainerStatuses = nil
					must(w.Kube.CoreV1().Pods(apitest.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}))
					return true, nil, apierrors.NewTimeoutError("no answer", 0)
				})
				kube.PrependReactor("get", "volumeattachments", func(ktesting.Action) (bool, runtime.Object, error) {
					if asked++; asked == 1 {
						return true, nil, apierrors.NewTimeoutError("no answer", 0)
					}
					return false, nil, nil
				})
				w.volume("disk")
				w.Pass(time.Minute)
				if asked != 2 {
					t.Errorf("asked %d times, want 2", asked)
				}
				if made {
					w.expect("not shown", "disk a waits")
				} else {
					w.expect("not made", "disk b waits")
				}
				show()
				w.Pass(time.Minute)
				w.expect("shown", "disk b waits")
				if len(current.unsure) > 0 {
					t.Errorf("kept %v", current.unsure)
				}
			})
		})
	}
}

// A driver that cannot detach a volume is named to the pods that wait for that.
func TestErrorsOfDetaching(t *testing.T) {
	fail := func(w world, message string) {
		client := w.Kube.StorageV1().VolumeAttachments()
		a := must(client.Get(ctx, attachmentOf("disk", "a"), metav1.GetOptions{}))
		a.Status.DetachError = &storagev1.VolumeError{Time: metav1.Now(), Message: message}
		must(client.UpdateStatus(ctx, a, metav1.UpdateOptions{}))
		w.Pass(time.Minute)
	}
	leaves := func(t *testing.T, node string, f func(w world)) {
		run(t, func(w world) {
			w.node("a")
			w.node("b")
			w.volume("disk")
			first := w.pod("first", "a", "disk")
			w.attacher()
			w.force(first)
			w.pod("second", node, "disk")
			w.expect("detached for another", "disk a leaves")
			f(w)
		})
	}
	t.Run("of another node", func(t *testing.T) {
		leaves(t, "b", func(w world) {
			for range 3 {
				fail(w, "disk is busy")
			}
			fail(w, strings.Repeat("ä", 100_000))
			got := w.events()[1:]
			const waits = `Warning FailedAttachVolume Multi-Attach error for volume "pv-disk" Volume is already exclusively attached to one node and can't be attached to another`
			if len(got) != 3 || got[0] != waits || got[1] != waits+`: it cannot be detached from node "a": disk is busy` ||
				len(got[2]) > 2*maxMessage {
				t.Errorf("events %.300q", got)
			}
			w.attacher()
			w.expect("detached", "disk b waits")
		})
	})
	t.Run("of the pod's node", func(t *testing.T) {
		leaves(t, "a", func(w world) {
			for range 3 {
				fail(w, "disk is busy")
			}
			want := []string{
				`Warning FailedAttachVolume AttachVolume.Attach failed for volume "pv-disk" : it cannot be detached from node "a": disk is busy`,
			}
			if got := w.events()[1:]; !slices.Equal(got, want) {
				t.Errorf("events %q, want %q", got, want)
			}
			w.attacher()
			w.expect("detached", "disk a waits")
		})
	})
}

// Of two pods that wait, the one whose node reports the volume in use gets it, even if the other
// one is older: that node may have it mounted.
func TestNodeThatReportsUseComesFirst(t *testing.T) {
	run(t, func(w world) {
		w.node("a")
		w.node("b")
		w.pod("older", "a", "disk")
		w.Pass(time.Second)
		w.pod("younger", "b", "disk")
		w.uses("b", "disk")
		w.volume("disk")
		w.Settle()
		w.expect("two pods", "disk b waits")
	})
}
