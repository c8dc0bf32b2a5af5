package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/apis/storage"
	storageconversion "k8s.io/kubernetes/pkg/apis/storage/v1"
	storagevalidation "k8s.io/kubernetes/pkg/apis/storage/validation"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
	"github.com/coracle-project/coracle/cluster/kubelet/csi/registration"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// csinode reads this node's CSINode.
func (n *testNode) csinode() *storagev1.CSINode {
	n.t.Helper()
	c, err := n.kube.StorageV1().CSINodes().Get(n.t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

// written has a value whenever this node's CSINode was written.
func (n *testNode) written() <-chan struct{} {
	events := make(chan struct{}, 100)
	apply := k8stesting.ObjectReaction(n.kube.Tracker())
	n.react("*", "csinodes", func(a k8stesting.Action) (bool, runtime.Object, error) {
		handled, object, err := apply(a)
		if a.GetVerb() != "get" {
			events <- struct{}{}
		}
		return handled, object, err
	})
	return events
}

func TestADriverIsPublished(t *testing.T) {
	other := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name:            "n1",
		OwnerReferences: []metav1.OwnerReference{{Kind: "Node", Name: "n1", UID: "node-1"}},
	}}
	other.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "other.example.com", NodeID: "x"}}
	n := newTestNode(t, other)
	d := newDriver(t, n.root, driverName)
	d.node.MaxVolumesPerNode = 7
	d.node.AccessibleTopology = &csipb.Topology{Segments: map[string]string{"example.com/zone": "z1"}}
	d.serve("a.sock").registered()
	drivers := n.csinode().Spec.Drivers
	if len(drivers) != 2 || drivers[0].Name != "other.example.com" || drivers[1].NodeID != "id-of-n1" ||
		drivers[1].TopologyKeys[0] != "example.com/zone" || *drivers[1].Allocatable.Count != 7 {
		t.Errorf("drivers: %+v", drivers)
	}
	node, err := n.kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || node.Labels["example.com/zone"] != "z1" || node.Annotations["csi.volume.kubernetes.io/nodeid"] != `{"`+driverName+`":"id-of-n1"}` {
		t.Errorf("node: %v %v, %v", node.Labels, node.Annotations, err)
	}
	// How many volumes the node can have has changed.
	d.mu.Lock()
	d.node.MaxVolumesPerNode = 5
	d.mu.Unlock()
	if err := n.registry.Count(t.Context(), driverName); err != nil {
		t.Fatal(err)
	}
	if got := n.csinode().Spec.Drivers; len(got) != 2 || *got[1].Allocatable.Count != 5 {
		t.Errorf("drivers: %+v", got)
	}
}

func TestRegistrationsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fakeDriver)
		want   string
	}{
		"a type that is not served":  {func(d *fakeDriver) { d.info.Type = registerapi.DevicePlugin }, "CSI drivers only"},
		"an old version":             {func(d *fakeDriver) { d.info.SupportedVersions = []string{"0.3.0"} }, "CSI 1.x"},
		"no version":                 {func(d *fakeDriver) { d.info.SupportedVersions = nil }, "CSI 1.x"},
		"no name for the node":       {func(d *fakeDriver) { d.node.NodeId = "" }, "node_id"},
		"a relative endpoint":        {func(d *fakeDriver) { d.info.Endpoint = "csi.sock" }, "absolute path"},
		"an endpoint without socket": {func(d *fakeDriver) { d.info.Endpoint = d.root + "/nothing.sock" }, "no such file"},
		"an answer without end":      {func(d *fakeDriver) { d.node.NodeId = strings.Repeat("x", 2*client.MostAnswer) }, "larger than max"},
		"a topology that the node has otherwise": {func(d *fakeDriver) {
			d.node.AccessibleTopology = &csipb.Topology{Segments: map[string]string{v1.LabelHostname: "n2"}}
		}, "topology value collision"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			d := newDriver(t, n.root, driverName)
			c.change(d)
			d.serve("a.sock")
			if told := <-d.told; told.PluginRegistered || !strings.Contains(told.Error, c.want) {
				t.Errorf("told %v, want %q", told, c.want)
			}
			unknown := registration.Unknown(driverName)
			if _, err := n.registry.Driver(driverName); !errors.As(err, &unknown) {
				t.Errorf("registered: %v", err)
			}
			// One that cannot be published keeps no other from it.
			newDriver(t, n.root, "good.example.com").serve("b.sock").registered()
			if got := n.csinode().Spec.Drivers; len(got) != 1 || got[0].Name != "good.example.com" {
				t.Errorf("drivers: %+v", got)
			}
		})
	}
}

// A driver whose topology contradicts the node's labels later keeps no other from registration.
func TestACollisionOfOneDriverKeepsNoOtherOut(t *testing.T) {
	n := newTestNode(t)
	zoned := newDriver(t, n.root, "zoned.example.com")
	zoned.node.AccessibleTopology = &csipb.Topology{Segments: map[string]string{"example.com/zone": "z1"}}
	zoned.serve("a.sock").registered()
	node, err := n.kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err == nil {
		node.Labels["example.com/zone"] = "z2"
		_, err = n.kube.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	d := newDriver(t, n.root, driverName).serve("b.sock")
	if told := <-d.told; !told.PluginRegistered {
		t.Error(told.Error)
	}
	if got := n.csinode().Spec.Drivers; !slices.ContainsFunc(got, func(e storagev1.CSINodeDriver) bool { return e.Name == driverName }) {
		t.Errorf("drivers: %+v", got)
	}
}

// A pod's volume that is unmounted ends no wait of its other volumes.
func TestAVolumeThatIsGoneEndsNoOthersWait(t *testing.T) {
	n := newTestNode(t, unattached())
	gone, waits := n.spec(pod("p1"), persistent("pv1", "handle-1")), n.spec(pod("p1"), persistent("pv2", "handle-2"))
	for _, s := range []*source.Spec{gone, waits} {
		unknown := registration.Unknown(driverName)
		if _, err := n.Mount(t.Context(), s); !errors.As(err, &unknown) {
			t.Fatal(err)
		}
	}
	n.unmount(gone)
	newDriver(t, n.root, driverName).serve("a.sock").registered()
	if uid := <-n.wakes; uid != "p1" || len(n.wakes) != 0 {
		t.Errorf("woken: %s and %d more", uid, len(n.wakes))
	}
	n.unmount(waits)
}

func TestDriverNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "../x", "volumeDevices", strings.Repeat("a", 64), "a_b", "\x00"} {
		if client.CheckName(name) == nil {
			t.Errorf("%q was accepted", name)
		}
	}
	for _, name := range []string{"ebs.csi.aws.com", "Secrets-Store.csi.k8s.io"} {
		if err := client.CheckName(name); err != nil {
			t.Error(err)
		}
	}
}

func TestADriverThatHangsHoldsUpNoOther(t *testing.T) {
	n := newTestNode(t)
	hanging := make(chan struct{}, 1)
	stuck := newDriver(t, n.root, "stuck.example.com")
	stuck.fault = func(ctx context.Context, call string) error {
		if call == "NodeGetInfo" {
			hanging <- struct{}{}
			<-ctx.Done()
		}
		return ctx.Err()
	}
	stuck.serve("a.sock")
	<-hanging
	newDriver(t, n.root, driverName).serve("b.sock").registered()
	stuck.die("a.sock")
	n.stop() // ends the call
}

func TestAFailedRegistrationIsTriedAgain(t *testing.T) {
	n := newTestNode(t)
	d := newDriver(t, n.root, driverName)
	d.fault = func(_ context.Context, call string) error {
		if call == "NodeGetInfo" && d.count(call) == 1 {
			return errors.New("not yet")
		}
		return nil
	}
	d.serve("a.sock")
	if told := <-d.told; told.PluginRegistered || !strings.Contains(told.Error, "not yet") {
		t.Errorf("told %v", told)
	}
	d.registered()
}

func TestADriverGoesAndComesBack(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	path := n.mount(s)
	written := n.written()
	d.die("a.sock")
	<-written
	for len(n.csinode().Spec.Drivers) > 0 {
		<-written
	}
	if _, err := n.registry.Driver(driverName); err == nil || !mountedOn(path) || len(n.volumeNames()) != 1 {
		t.Error("the driver is still known, or its volume is not", err)
	}
	p2 := n.spec(pod("p2"), persistent("pv2", "handle-2"))
	if _, err := n.Mount(t.Context(), p2); err == nil || !strings.Contains(err.Error(), "not found in the list of registered CSI drivers") {
		t.Errorf("error: %v", err)
	}
	again := newDriver(t, n.root, driverName).serve("a.sock")
	again.registered()
	if uid := <-n.wakes; uid != "p2" {
		t.Errorf("woken: %s", uid)
	}
	n.mount(p2)
	n.unmount(p2)
	n.unmount(s)
	n.awaitUse()
	n.nothingLeft()
}

// Regression: a driver that went while the API was away, and could not register again before it
// went for good, stayed in the CSINode.
func TestADriverThatGoesWhileTheAPIIsAway(t *testing.T) {
	n := newTestNode(t)
	var away atomic.Bool
	refused := make(chan struct{}, 100)
	n.react("get", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		if !away.Load() {
			return false, nil, nil
		}
		select {
		case refused <- struct{}{}:
		default:
		}
		return true, nil, apierrors.NewTimeoutError("no answer", 0)
	})
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	away.Store(true)
	d.die("a.sock")
	<-refused
	again := newDriver(t, n.root, driverName).serve("a.sock")
	if told := <-again.told; told.PluginRegistered {
		t.Error("registered without the API")
	}
	again.die("a.sock")
	written := n.written()
	away.Store(false)
	for len(n.csinode().Spec.Drivers) > 0 {
		<-written
	}
}

func TestTwoSocketsOfOneDriver(t *testing.T) {
	n := newTestNode(t)
	first := newDriver(t, n.root, driverName)
	first.serve("a.sock").registered()
	second := newDriver(t, n.root, driverName)
	second.info.Endpoint = filepath.Join(n.root, "plugins", "second", "csi.sock")
	second.node.NodeId = "second"
	if err := errors.Join(os.MkdirAll(filepath.Dir(second.info.Endpoint), 0o750),
		os.Symlink("../"+driverName+"/csi.sock", second.info.Endpoint)); err != nil {
		t.Fatal(err)
	}
	second.serve("b.sock").registered()
	if d, err := n.registry.Driver(driverName); err != nil || d.Endpoint != second.info.Endpoint {
		t.Errorf("driver %+v, %v", d, err)
	}
	written := n.written()
	if err := os.Remove(filepath.Join(n.root, "plugins_registry", "b.sock")); err != nil {
		t.Fatal(err)
	}
	for drivers := n.csinode().Spec.Drivers; len(drivers) != 1 || drivers[0].NodeID == "second"; drivers = n.csinode().Spec.Drivers {
		<-written
	}
	if d, err := n.registry.Driver(driverName); err != nil || d.Endpoint != first.info.Endpoint {
		t.Errorf("driver %+v, %v", d, err)
	}
}

func TestTheSocketsDirectoryIsMadeAgain(t *testing.T) {
	n := newTestNode(t)
	newDriver(t, n.root, driverName).serve("a.sock").registered()
	if err := os.RemoveAll(n.registry.Dir()); err != nil {
		t.Fatal(err)
	}
	newDriver(t, n.root, "next.example.com").serve("b.sock").registered()
}

func TestJunkInTheSocketsDirectory(t *testing.T) {
	n := newTestNode(t)
	if err := errors.Join(
		os.MkdirAll(filepath.Join(n.registry.Dir(), "dir"), 0o750), os.WriteFile(filepath.Join(n.registry.Dir(), "file"), nil, 0o600),
		os.Symlink("/dev/null", filepath.Join(n.registry.Dir(), "link")),
	); err != nil {
		t.Fatal(err)
	}
	newDriver(t, n.root, driverName).serve("a.sock").registered()
}

func TestANodeThatIsMadeAgainHasItsDrivers(t *testing.T) {
	n := newTestNode(t)
	newDriver(t, n.root, driverName).serve("a.sock").registered()
	node, err := n.kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.kube.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	node.UID, node.ResourceVersion, node.Annotations = "node-2", "", nil
	if node, err = n.kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	written := n.written()
	n.NodeChanged(node)
	for n.owner() != "node-2" {
		<-written
	}
	if got := n.csinode().Spec.Drivers; len(got) != 1 || got[0].Name != driverName {
		t.Errorf("drivers: %+v", got)
	}
}

// owner is the node of the CSINode, "" while there is none.
func (n *testNode) owner() types.UID {
	c, err := n.kube.StorageV1().CSINodes().Get(n.t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return c.OwnerReferences[0].UID
}

// The API server refuses to change an entry of a CSINode.
func TestADriverComesBackWithAnotherNodeID(t *testing.T) {
	n := newTestNode(t)
	n.react("update", "csinodes", func(a k8stesting.Action) (bool, runtime.Object, error) {
		var was, is storage.CSINode
		change := a.(k8stesting.UpdateAction).GetObject().(*storagev1.CSINode)
		old, err := n.kube.Tracker().Get(storagev1.SchemeGroupVersion.WithResource("csinodes"), "", "n1")
		if err != nil {
			return true, nil, err
		}
		err = errors.Join(storageconversion.Convert_v1_CSINode_To_storage_CSINode(old.(*storagev1.CSINode).DeepCopy(), &was, nil),
			storageconversion.Convert_v1_CSINode_To_storage_CSINode(change.DeepCopy(), &is, nil),
			storagevalidation.ValidateCSINodeUpdate(&is, &was).ToAggregate())
		return err != nil, nil, err
	})
	newDriver(t, n.root, "other.example.com").serve("other.sock").registered()
	first := newDriver(t, n.root, driverName)
	first.node.AccessibleTopology = &csipb.Topology{Segments: map[string]string{"example.com/zone": "z1", "example.com/rack": "r1"}}
	first.serve("a.sock").registered()
	second := newDriver(t, n.root, driverName)
	second.node.NodeId = "another-id"
	second.node.AccessibleTopology = &csipb.Topology{Segments: map[string]string{"example.com/zone": "z1"}}
	second.serve("b.sock")
	if told := <-second.told; !told.PluginRegistered {
		t.Fatal(told.Error)
	}
	drivers := n.csinode().Spec.Drivers
	at := slices.IndexFunc(drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driverName })
	if len(drivers) != 2 || at < 0 || drivers[at].NodeID != "another-id" ||
		!slices.Equal(drivers[at].TopologyKeys, []string{"example.com/zone"}) {
		t.Errorf("drivers: %+v", drivers)
	}
}

func TestAConflictIsReadAgain(t *testing.T) {
	n := newTestNode(t)
	newDriver(t, n.root, driverName).serve("a.sock").registered()
	conflicts := 0
	n.react("update", "csinodes", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if conflicts++; conflicts > 1 {
			return false, nil, nil
		}
		// Another program has added its own driver.
		c := a.(k8stesting.UpdateAction).GetObject().(*storagev1.CSINode).DeepCopy()
		c.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "other.example.com", NodeID: "x"}}
		_ = n.kube.Tracker().Update(storagev1.SchemeGroupVersion.WithResource("csinodes"), c, "")
		return true, nil, conflict
	})
	newDriver(t, n.root, "second.example.com").serve("b.sock").registered()
	if got := n.csinode().Spec.Drivers; len(got) != 3 || conflicts != 2 {
		t.Errorf("drivers %+v after %d updates", got, conflicts)
	}
}

// FuzzRecord reads what may be in a vol_data.json.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"driverName":"a.b","volumeHandle":"h","specVolID":"pv"}`))
	f.Add([]byte(`{"driverName":"..","volumeHandle":"h"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := parseRecord(raw)
		if err == nil && (r.Handle == "" || filepath.Base(r.Driver) != r.Driver) {
			t.Errorf("accepted %+v", r)
		}
	})
}
