package scheduler_test

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/coracle-project/coracle/cluster/scheduler"
)

func claiming(p *v1.Pod, claim string) *v1.Pod {
	p.Spec.Volumes = []v1.Volume{{
		Name:         "v",
		VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}},
	}}
	return p
}

// says checks why the pod waits.
func (c *cluster) says(name, why string) {
	c.t.Helper()
	want := "0/2 nodes are available: " + why +
		". no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
	if got := condition(c.get(name)); got.Status != v1.ConditionFalse || got.Reason != v1.PodReasonUnschedulable || got.Message != want {
		c.t.Errorf("condition is %+v, want %s", got, want)
	}
}

// pause lets back-offs end.
func pause() {
	time.Sleep(15 * time.Second)
	synctest.Wait()
}

func TestPodWaitsForItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "4"), node("b", "2"))
		defer c.stop()
		claims, ctx := c.client.CoreV1().PersistentVolumeClaims("default"), t.Context()
		c.create(claiming(pod("p", "1"), "data"))
		c.says("p", `persistentvolumeclaim "data" not found`)

		claim, err := claims.Create(ctx, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pause()
		c.says("p", "pod has unbound immediate PersistentVolumeClaims")

		claim.Spec.VolumeName, claim.Annotations = "disk", map[string]string{volume.AnnBindCompleted: "yes"}
		if _, err := claims.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pause()
		c.says("p", `persistentvolume "disk" not found`)

		// It can only be reached from the smaller node.
		if _, err := c.client.CoreV1().PersistentVolumes().Create(ctx, &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "disk"},
			Spec: v1.PersistentVolumeSpec{NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"b"}}},
			}}}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pause()
		c.on("p", "b")
	})
}

func TestEphemeralVolumeWaitsForItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "4"), node("b", "2"))
		defer c.stop()
		p := pod("p", "1")
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
		c.create(p)
		c.says("p", `waiting for ephemeral volume controller to create the persistentvolumeclaim "p-v"`)
	})
}

func TestClaimForOnePodIsNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "4"), node("b", "2"),
			&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}},
			&v1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", Annotations: map[string]string{volume.AnnBindCompleted: "yes"}},
				Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "disk", AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}},
			})
		defer c.stop()
		c.create(claiming(pod("first", "1"), "data"), claiming(pod("second", "1"), "data"))
		c.on("first", "a")
		c.on("second", "")
		if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		pause()
		c.on("second", "a")
	})
}
