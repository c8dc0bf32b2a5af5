package scheduler_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/scheduler"
)

// gpus returns the class of all GPUs.
func gpus() *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "gpu.example.org"`}}},
	}}
}

// gpusAs returns the class of all GPUs, which are the extended resource name, too.
func gpusAs(name string) *resourcev1.DeviceClass {
	class := gpus()
	class.Spec.ExtendedResourceName = &name
	return class
}

// asking returns a pod that requests so many of an extended resource.
func asking(name, resourceName, many string) *v1.Pod {
	p := pod(name, "1")
	p.Spec.Containers[0].Resources.Requests[v1.ResourceName(resourceName)] = resource.MustParse(many)
	return p
}

// named gives the claims that the scheduler makes names and UIDs, as an API server does.
func (c *cluster) named() {
	var made atomic.Int64
	c.client.PrependReactor("create", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		claim := a.(clienttesting.CreateAction).GetObject().(*resourcev1.ResourceClaim)
		if claim.Name == "" {
			claim.Name = fmt.Sprint(claim.GenerateName, made.Add(1))
			claim.UID, claim.ResourceVersion = types.UID(claim.Name+"-uid"), "1"
		}
		return false, nil, nil
	})
}

// slice returns the GPUs of a node, with a memory of so many GiB each.
func slice(node string, memory ...int64) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-gpus"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.org", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i, m := range memory {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{
			Name: fmt.Sprint("gpu-", i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"memory": {IntValue: &m}},
		})
	}
	return s
}

// device returns a claim of one GPU with at least so many GiB.
func device(name string, memory int) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid"), ResourceVersion: "1"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
				Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
					Expression: fmt.Sprintf(`device.attributes["gpu.example.org"].memory >= %d`, memory),
				}}},
			},
		}}}},
	}
}

func using(p *v1.Pod, claim string) *v1.Pod {
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
	return p
}

func (c *cluster) device(name string) *resourcev1.ResourceClaim {
	c.t.Helper()
	claim, err := c.client.ResourceV1().ResourceClaims("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return claim
}

// A claim gets a device that it asks for, on the node to which its pod goes, and no other claim
// gets that device before it is given back.
func TestDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "16"), node("b", "4"), gpus(), slice("a", 8), slice("b", 8, 24), device("large", 16),
			device("small", 1), device("more", 1), device("most", 1))
		defer c.stop()
		c.versioned()
		c.create(using(pod("p", "1"), "large"))
		c.on("p", "b")
		claim := c.device("large")
		if claim.Status.Allocation == nil || len(claim.Status.Allocation.Devices.Results) != 1 ||
			claim.Status.Allocation.Devices.Results[0].Device != "gpu-1" {
			t.Fatalf("the claim got %+v", claim.Status.Allocation)
		}
		if r := claim.Status.ReservedFor; len(r) != 1 || r[0].Name != "p" || r[0].UID != "p-uid" {
			t.Errorf("it is reserved for %+v", r)
		}
		c.create(using(pod("q", "1"), "small"), using(pod("r", "1"), "more"))
		got := map[string]bool{}
		for _, name := range []string{"large", "small", "more"} {
			a := c.device(name).Status.Allocation
			if a == nil {
				t.Fatalf("%s got nothing", name)
			}
			got[a.Devices.Results[0].Pool+"/"+a.Devices.Results[0].Device] = true
		}
		if len(got) != 3 {
			t.Errorf("three claims got %v", got)
		}
		for len(c.events) > 0 {
			<-c.events
		}
		c.create(using(pod("s", "1"), "most"))
		c.on("s", "")
		if got, want := c.event(), "2 cannot allocate all claims"; !strings.Contains(got, want) {
			t.Errorf("event is %q, not of %q", got, want)
		}
		// It is told of a device that comes.
		if _, err := c.client.ResourceV1().ResourceSlices().Create(t.Context(), slice("c", 8), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.client.CoreV1().Nodes().Create(t.Context(), node("c", "4"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pause()
		c.on("s", "c")
	})
}

// A pod waits for a claim that is made for it, and for one that does not exist, without being
// tried.
func TestPodWaitsForItsResourceClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "16"), gpus(), slice("a", 8, 8), device("first", 1))
		defer c.stop()
		c.versioned()
		c.create(using(pod("warm", "1"), "first"))
		c.on("warm", "a")
		c.event()
		template := pod("p", "1")
		template.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpu")}}
		c.create(template)
		c.on("p", "")
		if len(c.events) != 0 {
			t.Errorf("it was tried: %s", c.event())
		}
		made := device("p-gpu-x", 1)
		made.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p-uid", Controller: ptr.To(true)}}
		if _, err := c.client.ResourceV1().ResourceClaims("default").Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		told := c.get("p").DeepCopy()
		told.ResourceVersion = "2"
		told.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: ptr.To("p-gpu-x")}}
		if _, err := c.client.CoreV1().Pods("default").UpdateStatus(t.Context(), told, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pause()
		c.on("p", "a")
	})
}

// Forty pods for ten devices: ten are placed, no device is given twice.
func TestManyPodsForFewDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{gpus()}
		for i := range 5 {
			objects = append(objects, node(fmt.Sprint("n", i), "100"), slice(fmt.Sprint("n", i), 8, 8))
		}
		const pods = 40
		for i := range pods {
			objects = append(objects, device(fmt.Sprint("d", i), 1), using(pod(fmt.Sprint("p", i), "1"), fmt.Sprint("d", i)))
		}
		c := start(t, scheduler.Options{}, objects...)
		defer c.stop()
		time.Sleep(time.Second)
		synctest.Wait()
		devices, placed := map[string]string{}, 0
		for i := range pods {
			name := fmt.Sprint("d", i)
			if a := c.device(name).Status.Allocation; a != nil {
				r := a.Devices.Results[0]
				if other := devices[r.Pool+r.Device]; other != "" {
					t.Errorf("%s/%s is given to %s and %s", r.Pool, r.Device, other, name)
				}
				devices[r.Pool+r.Device] = name
			}
			if on := c.get(fmt.Sprint("p", i)).Spec.NodeName; on != "" {
				placed++
				if a := c.device(name).Status.Allocation; a == nil || a.Devices.Results[0].Pool != on {
					t.Errorf("pod %d is on %s, its device is %+v", i, on, a)
				}
			}
		}
		if placed != 10 || len(devices) != 10 {
			t.Errorf("%d pods are placed, %d devices given", placed, len(devices))
		}
	})
}

// An API server without the group keeps only pods with claims waiting.
func TestAPIServerWithoutDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "16"))
		defer c.stop()
		c.refuseLists("resourceslices")
		c.create(using(pod("p", "1"), "gpu"))
		c.create(pod("plain", "1"))
		c.on("plain", "a")
		c.event()
		pause()
		if got, want := condition(c.get("p")).Message,
			"informers of resource.k8s.io/v1 have not synced for 10s: see that the API server works and serves them"; !strings.Contains(got, want) {
			t.Errorf("condition says %q, not %q", got, want)
		}
	})
}

// A pod that is turned down before its devices are looked for says no more than why.
func TestPodWithDevicesThatAnotherPluginTurnsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, scheduler.Options{}, node("a", "16"), node("b", "16"), gpus(), slice("a", 8), device("gpu", 1), device("first", 1),
			&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}})
		defer c.stop()
		c.versioned()
		c.create(using(pod("warm", "1"), "first"))
		c.on("warm", "a")
		c.create(claiming(using(pod("p", "1"), "gpu"), "data"))
		c.says("p", "pod has unbound immediate PersistentVolumeClaims")
	})
}

// A pod that requests an extended resource gets it from a node that has it, or a claim of devices
// whose class is named for the resource.
func TestExtendedResourceOfDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const gpu = "example.org/gpu"
		plugged := node("b", "16")
		plugged.Status.Allocatable[gpu] = resource.MustParse("1")
		c := start(t, scheduler.Options{}, node("a", "16"), plugged, gpusAs(gpu), slice("a", 8, 8))
		defer c.stop()
		c.versioned()
		c.named()
		c.create(asking("p", gpu, "2"))
		pause()
		c.on("p", "a")
		status := c.get("p").Status.ExtendedResourceClaimStatus
		if status == nil || len(status.RequestMappings) != 1 || status.RequestMappings[0].ContainerName != "c" ||
			status.RequestMappings[0].ResourceName != gpu {
			t.Fatalf("the pod's status is %+v", status)
		}
		claim := c.device(status.ResourceClaimName)
		if claim.Status.Allocation == nil || len(claim.Status.Allocation.Devices.Results) != 2 ||
			claim.Status.Allocation.Devices.Results[0].Pool != "a" {
			t.Errorf("the claim got %+v", claim.Status.Allocation)
		}
		if !metav1.IsControlledBy(claim, c.get("p")) || len(claim.Status.ReservedFor) != 1 || claim.Status.ReservedFor[0].UID != "p-uid" {
			t.Errorf("it is owned by %+v, reserved for %+v", claim.OwnerReferences, claim.Status.ReservedFor)
		}
		c.create(asking("q", gpu, "1"))
		c.on("q", "b")
		if status := c.get("q").Status.ExtendedResourceClaimStatus; status != nil {
			t.Errorf("a pod with the node's own resource has the claim %+v", status)
		}
		for len(c.events) > 0 {
			<-c.events
		}
		c.create(asking("r", gpu, "1"))
		c.on("r", "")
		if got := c.event(); !strings.Contains(got, "1 Insufficient "+gpu) || !strings.Contains(got, "1 cannot allocate all claims") {
			t.Errorf("event is %q", got)
		}
		if claims, err := c.client.ResourceV1().ResourceClaims("default").List(t.Context(), metav1.ListOptions{}); err != nil ||
			len(claims.Items) != 1 {
			t.Errorf("claims are %+v, %v", claims.Items, err)
		}
	})
}

// A pod waits for the class of the extended resource that it requests, by the name that the class
// gives, or by the class's own.
func TestPodWaitsForTheClassOfItsExtendedResource(t *testing.T) {
	for _, name := range []string{"example.org/gpu", resourcev1.ResourceDeviceClassPrefix + "gpu"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, scheduler.Options{}, node("a", "16"), slice("a", 8))
				defer c.stop()
				c.versioned()
				c.named()
				c.create(asking("p", name, "1"))
				c.on("p", "")
				if got, want := c.event(), "1 Insufficient "+name; !strings.Contains(got, want) {
					t.Errorf("event is %q, not of %q", got, want)
				}
				if _, err := c.client.ResourceV1().DeviceClasses().Create(t.Context(), gpusAs("example.org/gpu"), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				pause()
				c.on("p", "a")
				if c.get("p").Status.ExtendedResourceClaimStatus == nil {
					t.Error("it has no claim")
				}
			})
		})
	}
}
