package scheduler_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/scheduler"
)

// later returns the class of volumes that wait for their first pod.
func later(provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "later"}, Provisioner: provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}

// claim returns one of class later for 1 GiB.
func claim(name string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid"), ResourceVersion: "1"},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("later"), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
}

// disk returns a volume of class later that only node reaches.
func disk(name, node string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"},
		Spec: v1.PersistentVolumeSpec{
			StorageClassName: "later", Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/x"}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
}

// versioned has each change give an object a version of its own, as an API server does.
func (c *cluster) versioned() {
	var version atomic.Int64
	version.Store(100)
	c.client.PrependReactor("update", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if object, err := meta.Accessor(a.(clienttesting.UpdateAction).GetObject()); err == nil {
			object.SetResourceVersion(fmt.Sprint(version.Add(1)))
		}
		return false, nil, nil
	})
}

// bindClaim does what the controller of volumes does at the end.
func (c *cluster) bindClaim(name, pv string) {
	c.t.Helper()
	claim := c.claim(name).DeepCopy()
	claim.Spec.VolumeName = pv
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
	claim.Status.Phase = v1.ClaimBound
	c.updateClaim(claim)
}

func (c *cluster) updateClaim(claim *v1.PersistentVolumeClaim) {
	c.t.Helper()
	if _, err := c.client.CoreV1().PersistentVolumeClaims("default").Update(c.t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

func (c *cluster) claim(name string) *v1.PersistentVolumeClaim {
	c.t.Helper()
	claim, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return claim
}

func (c *cluster) createVolume(pv *v1.PersistentVolume) {
	c.t.Helper()
	if _, err := c.client.CoreV1().PersistentVolumes().Create(c.t.Context(), pv, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

// provision does what a provisioner and the controller of volumes do for a claim.
func (c *cluster) provision(name, node string) {
	c.t.Helper()
	pv := disk("pv-"+name, node)
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: name, UID: c.claim(name).UID}
	c.createVolume(pv)
	c.bindClaim(name, pv.Name)
}

func (c *cluster) selected(name, node string) {
	c.t.Helper()
	if got := c.claim(name).Annotations[volume.AnnSelectedNode]; got != node {
		c.t.Errorf("claim %s is to be provisioned on %q, not on %q", name, got, node)
	}
}

// A volume that waits for its pod is made where the pod fits, and the pod goes there as soon as it
// is made: upstream's scheduler would look after a second.
func TestVolumeIsProvisionedWhereThePodFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "1"), node("b", "4"), later("example.org/later"), claim("data"))
		defer c.stop()
		c.versioned()
		began := time.Now()
		c.create(claiming(pod("p", "2"), "data"))
		c.selected("data", "b")
		c.on("p", "")
		c.provision("data", "b")
		c.on("p", "b")
		if waited := time.Since(began); waited > 0 {
			t.Errorf("the pod waited for %s for a volume that was there", waited)
		}
		if got, want := c.event(), "Normal Scheduled Successfully assigned default/p to b"; got != want {
			t.Errorf("event is %q, not %q", got, want)
		}
	})
}

// A volume that exists is chosen with the node, and is given to the claim before the pod is bound.
func TestVolumeIsChosenWithTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "4"), node("b", "2"), later(volume.NotSupportedProvisioner), claim("data"), claim("more"))
		defer c.stop()
		c.versioned()
		c.create(claiming(pod("p", "1"), "data"))
		c.says("p", "2 node(s) didn't find available persistent volumes to bind")
		c.createVolume(disk("pv", "b"))
		pause()
		pv, err := c.client.CoreV1().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ref := pv.Spec.ClaimRef; ref == nil || ref.Name != "data" || ref.UID != "data-uid" {
			t.Fatalf("the volume is for %v", ref)
		}
		c.on("p", "")
		// Another pod does not get it meanwhile.
		c.create(claiming(pod("q", "1"), "more"))
		c.says("q", "2 node(s) didn't find available persistent volumes to bind")
		c.bindClaim("data", "pv")
		c.on("p", "b")
	})
}

// Pods whose volumes do not come keep no other pod waiting, however many they are.
func TestProvisionerThatHangsKeepsOnlyItsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{node("a", "100"), later("example.org/hangs")}
		const pods = 20
		for i := range pods {
			objects = append(objects, claim(fmt.Sprint("data-", i)))
		}
		c := start(t, scheduler.Options{Bindings: 2}, objects...)
		defer c.stop()
		c.versioned()
		for i := range pods {
			c.create(claiming(pod(fmt.Sprint("p", i), "1"), fmt.Sprint("data-", i)))
			c.selected(fmt.Sprint("data-", i), "a")
		}
		c.create(pod("plain", "1"))
		c.on("plain", "a")
		c.event()
		// They say so in the end, and wait again.
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if got, want := condition(c.get("p0")).Message,
			"binding volumes: claim default/data-0 has had no volume for 10m0s"; !strings.Contains(got, want) {
			t.Errorf("condition says %q, not %q", got, want)
		}
		c.provision("data-0", "a")
		time.Sleep(time.Minute)
		synctest.Wait()
		c.on("p0", "a")
	})
}

// A pod that is deleted while it waits for its volume leaves its place at once.
func TestPodDeletedWhileItWaitsForItsVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "2"), later("example.org/later"), claim("data"))
		defer c.stop()
		c.versioned()
		c.create(claiming(pod("p", "2"), "data"))
		c.create(pod("next", "2"))
		c.on("next", "")
		if n := c.s.Preparing(); n != 1 {
			t.Fatalf("%d pods wait for volumes", n)
		}
		if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := c.s.Preparing(); n != 0 {
			t.Errorf("%d pods wait for volumes after the only one was deleted", n)
		}
		pause()
		c.on("next", "a")
	})
}

// A pod that waits for its volume is nominated to its node: a scheduler that starts meanwhile keeps
// its room.
func TestPodThatWaitsForItsVolumeIsNominated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "2"), later("example.org/later"), claim("data"))
		defer c.stop()
		c.versioned()
		c.create(claiming(pod("p", "2"), "data"))
		if n := c.s.Preparing(); n != 1 {
			t.Fatalf("%d pods wait for volumes", n)
		}
		if got := c.get("p").Status.NominatedNodeName; got != "a" {
			t.Errorf("nominated to %q, want a", got)
		}
		time.Sleep(10*time.Minute + time.Second) // until it fails
		synctest.Wait()
		if got := c.event(); !strings.Contains(got, "has had no volume for 10m0s") {
			t.Errorf("event %q", got)
		}
		c.provision("data", "a")
		time.Sleep(time.Minute)
		synctest.Wait()
		c.on("p", "a")
	})
}

// A pod of higher priority takes the room of one that is not bound yet, which is not removed: it
// looks for another node.
func TestPodThatWaitsForItsVolumeIsPreemptedInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "2"), later("example.org/later"), claim("data"))
		defer c.stop()
		c.versioned()
		c.create(claiming(pod("low", "2"), "data"))
		if n := c.s.Preparing(); n != 1 {
			t.Fatalf("%d pods wait for volumes", n)
		}
		c.create(withPriority(pod("high", "2"), 10))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		c.on("high", "a")
		c.on("low", "")
		if low := c.get("low"); len(low.Status.Conditions) != 1 || low.Status.NominatedNodeName != "" {
			t.Errorf("the pod that has to look again: %+v", low.Status)
		}
		if n := c.s.Preparing(); n != 0 {
			t.Errorf("%d pods wait for volumes", n)
		}
		if _, err := c.client.CoreV1().Nodes().Create(t.Context(), node("b", "2"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.provision("data", "b")
		time.Sleep(time.Minute)
		synctest.Wait()
		c.on("low", "b")
	})
}

// What ends a wait: a provisioner that gives up on the node, a volume elsewhere, a node or a claim
// that is deleted.
func TestVolumeThatDoesNotCome(t *testing.T) {
	for _, test := range []struct {
		name, says string
		end        func(c *cluster)
	}{
		{"the provisioner gives up on the node", `provisioning failed for PVC "data"`, func(c *cluster) {
			claim := c.claim("data").DeepCopy()
			delete(claim.Annotations, volume.AnnSelectedNode)
			c.updateClaim(claim)
		}},
		{"the volume is elsewhere", `pv "pv-data" node affinity doesn't match node "a"`, func(c *cluster) { c.provision("data", "b") }},
		{"the node is deleted", "look up node a", func(c *cluster) {
			if err := c.client.CoreV1().Nodes().Delete(c.t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				c.t.Fatal(err)
			}
			synctest.Wait()
		}},
		{"the claim is deleted", "look up claim default/data", func(c *cluster) {
			if err := c.client.CoreV1().PersistentVolumeClaims("default").Delete(c.t.Context(), "data", metav1.DeleteOptions{}); err != nil {
				c.t.Fatal(err)
			}
			synctest.Wait()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, scheduler.Options{}, node("a", "4"), later("example.org/later"), claim("data"))
				defer c.stop()
				c.versioned()
				c.create(claiming(pod("p", "1"), "data"))
				c.selected("data", "a")
				began := time.Now()
				test.end(c)
				if got := c.event(); !strings.Contains(got, test.says) || time.Since(began) > 0 {
					t.Errorf("after %s the event is %q, not of %q", time.Since(began), got, test.says)
				}
				c.on("p", "")
			})
		})
	}
}

// A volume that its claim was given and that is taken away again is not waited for.
func TestVolumeThatIsTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "4"), later(volume.NotSupportedProvisioner), claim("data"), disk("pv", "a"))
		defer c.stop()
		c.versioned()
		c.create(claiming(pod("p", "1"), "data"))
		volumes := c.client.CoreV1().PersistentVolumes()
		pv, err := volumes.Get(t.Context(), "pv", metav1.GetOptions{})
		if err != nil || pv.Spec.ClaimRef == nil {
			t.Fatalf("the volume is %+v, %v", pv, err)
		}
		pv = pv.DeepCopy()
		pv.Spec.ClaimRef = nil
		if _, err := volumes.Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, want := c.event(), "the volume of claim default/data was taken from it again"; !strings.Contains(got, want) {
			t.Errorf("event is %q, not of %q", got, want)
		}
	})
}

// That holds also if the informer did not see that the volume was given.
func TestVolumeThatIsTakenAwayUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "4"), later(volume.NotSupportedProvisioner), claim("data"), disk("pv", "a"))
		defer c.stop()
		c.client.PrependReactor("update", "persistentvolumes", func(a clienttesting.Action) (bool, runtime.Object, error) {
			given := a.(clienttesting.UpdateAction).GetObject().(*v1.PersistentVolume).DeepCopy()
			given.ResourceVersion = "1001"
			after := given.DeepCopy()
			after.Spec.ClaimRef, after.ResourceVersion = nil, "1002"
			return true, given, c.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("persistentvolumes"), after, "")
		})
		c.create(claiming(pod("p", "1"), "data"))
		if got, want := c.event(), "the volume of claim default/data was taken from it again"; !strings.Contains(got, want) {
			t.Errorf("event is %q, not of %q", got, want)
		}
	})
}

// What counts of a volume whose plugin a driver has taken over is where the driver says that it can
// be reached: of those that claims had already, and of those that are made.
func TestVolumesThatADriverHasTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		where := node("a", "4")
		where.Labels["topology.ebs.csi.aws.com/zone"] = "z1"
		ebs := func(name string) *v1.PersistentVolume {
			pv := disk(name, "")
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-" +
				name}}
			pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0] = v1.NodeSelectorRequirement{
				Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{"z1"},
			}
			pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: name, UID: types.UID(name + "-uid")}
			return pv
		}
		old := claim("old")
		old.Spec.VolumeName, old.Annotations = "old", map[string]string{volume.AnnBindCompleted: "yes"}
		c := start(t, scheduler.Options{}, where, later("example.org/later"), claim("data"), old, ebs("old"), &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{v1.MigratedPluginsAnnotationKey: "kubernetes.io/aws-ebs"}},
		})
		defer c.stop()
		c.versioned()
		p := claiming(pod("p", "1"), "data")
		p.Spec.Volumes = append(p.Spec.Volumes,
			v1.Volume{Name: "w", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "old"}}})
		c.create(p)
		c.selected("data", "a")
		c.createVolume(ebs("data"))
		c.bindClaim("data", "data")
		c.on("p", "a")
	})
}

// A scheduler goes on where the one before it was killed: a volume may be on its way.
func TestNodeOfAVolumeOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := claim("data")
		asked.Annotations = map[string]string{volume.AnnSelectedNode: "b"}
		c := start(t, scheduler.Options{}, node("a", "16"), node("b", "2"), later("example.org/later"), asked, claiming(pod("p", "1"), "data"))
		defer c.stop()
		c.versioned()
		time.Sleep(time.Second)
		synctest.Wait()
		c.on("p", "")
		c.provision("data", "b")
		pause()
		c.on("p", "b")
	})
}

// A claim goes where there is room for it, and waits until there is.
func TestCapacityOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "4"), node("b", "2"), later("example.org/later"), claim("data"), &storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: "example.org/later"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)},
		}, capacity("a", "1Mi"))
		defer c.stop()
		c.versioned()
		c.create(claiming(pod("p", "1"), "data"))
		c.says("p", "2 node(s) did not have enough free storage")
		if _, err := c.client.StorageV1().CSIStorageCapacities("default").Create(t.Context(), capacity("b", "2Gi"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pause()
		c.selected("data", "b")
	})
}

func capacity(node, size string) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: node}, StorageClassName: "later", Capacity: ptr.To(resource.MustParse(size)),
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelHostname: node}},
	}
}

// A driver attaches no more volumes to a node than it can.
func TestLimitOfVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{node("a", "4"), &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name: "example.org", NodeID: "a",
				Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](1)},
			}}},
		}}
		for _, name := range []string{"one", "two"} {
			pv := disk("pv-"+name, "a")
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "example.org", VolumeHandle: name}}
			bound := claim(name)
			bound.Spec.VolumeName, bound.Annotations = pv.Name, map[string]string{volume.AnnBindCompleted: "yes"}
			objects = append(objects, pv, bound)
		}
		c := start(t, scheduler.Options{}, objects...)
		defer c.stop()
		c.create(claiming(pod("first", "1"), "one"), claiming(pod("again", "1"), "one"), claiming(pod("second", "1"), "two"))
		c.on("first", "a")
		c.on("again", "a") // the same volume
		c.on("second", "")
		if got, want := condition(c.get("second")).Message, "1 node(s) exceed max volume count."; !strings.Contains(got, want) {
			t.Errorf("condition says %q, not %q", got, want)
		}
		for _, name := range []string{"first", "again"} {
			if err := c.client.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		pause()
		c.on("second", "a")
	})
}

// refuseLists has an API server that does not serve a resource until what is returned is true.
func (c *cluster) refuseLists(what string) (served *atomic.Bool) {
	served = new(atomic.Bool)
	c.client.PrependReactor("list", what, func(clienttesting.Action) (bool, runtime.Object, error) {
		if served.Load() {
			return false, nil, nil
		}
		return true, nil, errors.New("the server could not find the requested resource")
	})
	return served
}

// An API server that does not serve what is read for pods with claims keeps those waiting and no
// others, and they say why.
func TestAPIServerWithoutStorageGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "4"), later("example.org/later"), claim("data"))
		defer c.stop()
		c.versioned()
		served := c.refuseLists("csinodes")
		c.create(claiming(pod("p", "1"), "data"))
		c.create(pod("plain", "1"))
		c.on("plain", "a")
		c.event()
		pause()
		if got, want := condition(c.get("p")).Message,
			"informers of storage.k8s.io have not synced for 10s: see that the API server works and serves them"; !strings.Contains(got, want) {
			t.Errorf("condition says %q, not %q", got, want)
		}
		served.Store(true)
		time.Sleep(2 * time.Minute) // the informer's back-off
		synctest.Wait()
		c.selected("data", "a")
	})
}

// Nothing is made for pods with claims and devices before there is one.
func TestPodsWithoutClaimsCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "100"), later("example.org/later"), claim("data"))
		defer c.stop()
		c.versioned()
		read := func() (kinds []string) {
			for _, a := range c.client.Actions() {
				switch r := a.GetResource(); {
				case r.Group == "storage.k8s.io" && r.Resource != "storageclasses", r.Group == "resource.k8s.io":
					kinds = append(kinds, r.Resource)
				}
			}
			return kinds
		}
		plain := pod("plain", "1")
		plain.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		c.create(plain, pod("other", "1"))
		c.on("plain", "a")
		if kinds := read(); len(kinds) > 0 {
			t.Errorf("%v are read for pods without claims", kinds)
		}
		c.create(claiming(pod("p", "1"), "data"))
		if kinds := read(); len(kinds) < 4 {
			t.Errorf("only %v are read for a pod with a claim", kinds)
		}
	})
}
