package localpath

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

// Data is deleted of a volume that is released and whose policy says so, and of no other.
func TestDataThatIsKept(t *testing.T) {
	for name, change := range map[string]func(*bench, *corev1.PersistentVolumeClaim){
		"bound": func(*bench, *corev1.PersistentVolumeClaim) {},
		"told to be released, and its claim is there": func(b *bench, c *corev1.PersistentVolumeClaim) { b.phase(c, corev1.VolumeReleased) },
		"being deleted, and its claim is there": func(b *bench, c *corev1.PersistentVolumeClaim) {
			b.ok(b.Kube.CoreV1().PersistentVolumes().Delete(b.t.Context(), nameOf(c), metav1.DeleteOptions{}))
		},
		"made available to any claim": func(b *bench, c *corev1.PersistentVolumeClaim) {
			b.update(c, func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil })
			b.letGo(c)
		},
		"reserved for a claim by its name": func(b *bench, c *corev1.PersistentVolumeClaim) {
			b.update(c, func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "" })
			b.letGo(c)
		},
		"to be retained": func(b *bench, c *corev1.PersistentVolumeClaim) {
			b.update(c, func(pv *corev1.PersistentVolume) {
				pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			})
			b.release(c)
			b.Settle()
			b.ok(b.Kube.CoreV1().PersistentVolumes().Delete(b.t.Context(), nameOf(c), metav1.DeleteOptions{}))
			b.Settle()
			if b.volume(c) != nil {
				b.t.Error("its PersistentVolume cannot be deleted")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			ours(Options{Root: root}).Run(t, func(t *testing.T, s *apitest.Server) {
				b := prepare(t, s, root)
				claim := b.claim("data", "1Mi", nil)
				s.Settle()
				b.bind(claim)
				write(t, b.dir(claim)+"/file")
				change(b, claim)
				s.Pass(time.Hour)
				s.Restart()
				if !exists(b.dir(claim) + "/file") {
					t.Error("its data is gone")
				}
			})
		})
	}
}

func (b *bench) update(claim *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolume)) {
	b.t.Helper()
	pv := b.volume(claim)
	change(pv)
	_, err := b.Kube.CoreV1().PersistentVolumes().Update(b.t.Context(), pv, metav1.UpdateOptions{})
	b.ok(err)
}

// letGo wants a volume that no claim has to keep its data when it is released, and to be deletable.
func (b *bench) letGo(claim *corev1.PersistentVolumeClaim) {
	b.t.Helper()
	b.release(claim)
	b.Settle()
	if b.volume(claim) == nil {
		b.t.Fatal("it was deleted")
	}
	b.ok(b.Kube.CoreV1().PersistentVolumes().Delete(b.t.Context(), nameOf(claim), metav1.DeleteOptions{}))
	b.Settle()
	if b.volume(claim) != nil {
		b.t.Error("its PersistentVolume cannot be deleted")
	}
	b.wantEvent(nameOf(claim), "VolumeDelete", "its data stays in "+b.dir(claim))
}

// What an administrator decides until the last moment counts.
func TestAVolumeThatIsKeptInTheLastMoment(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"retained": func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		},
		"available":   func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil },
		"not changed": nil,
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			var lastMoment func()
			users := func(string) ([]types.UID, error) {
				if lastMoment != nil {
					lastMoment()
					lastMoment = nil
				}
				return nil, nil
			}
			ours(Options{Root: root, Users: users}).Run(t, func(t *testing.T, s *apitest.Server) {
				b := prepare(t, s, root)
				claim := b.claim("data", "1Mi", nil)
				s.Settle()
				b.bind(claim)
				write(t, b.dir(claim)+"/file")
				s.Settle()
				asked := false
				lastMoment = func() {
					asked = true
					if change != nil {
						b.update(claim, change)
					}
				}
				b.release(claim)
				s.Settle()
				if kept := exists(b.dir(claim) + "/file"); !asked || kept != (change != nil) {
					t.Errorf("asked for users %t, data is there %t", asked, kept)
				}
			})
		})
	}
}
