package upstream

import (
	"bytes"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/controllers/internal/nodepatch"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

// The allocator sees the networks that it has written before their event comes, or it would take
// others for the same node. Another node of this name has none.
func TestWrittenNetworksAreSeenBeforeTheirEvent(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "first"}}
	kube := fake.NewClientset(node)
	seen := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	if err := seen.Add(node); err != nil {
		t.Fatal(err)
	}
	lister := corelisters.NewNodeLister(seen)
	w := &written{nodes: lister}
	own := ownNodesLister{NodeLister: lister, written: w}
	expect := func(when string, want ...string) {
		t.Helper()
		n, err := own.Get("n")
		if err != nil || !slices.Equal(n.Spec.PodCIDRs, want) || len(want) > 0 && n.Spec.PodCIDR != want[0] {
			t.Errorf("%s: the allocator sees %v, want %v, %v", when, n.Spec.PodCIDRs, want, err)
		}
	}
	expect("at first")
	nodes := kube.CoreV1().Nodes()
	patching := sparingNodes{nodes, sparing{write: nodepatch.New(nodes), written: w}}
	patch := []byte(`{"spec":{"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24","fd00::/64"]}}`)
	if _, err := patching.Patch(t.Context(), "n", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("without the event", "10.0.0.0/24", "fd00::/64")
	if node.Spec.PodCIDR != "" {
		t.Error("the informer's object was changed")
	}
	other := node.DeepCopy()
	other.UID = "second"
	if err := seen.Update(other); err != nil {
		t.Fatal(err)
	}
	expect("another node of this name")
	if err := seen.Update(node); err != nil {
		t.Fatal(err)
	}
	w.forget("n")
	expect("forgotten")
}

// Regression: what was written stayed on record if its event came before the API server's answer.
func TestWrittenNetworksWhoseEventIsFirst(t *testing.T) {
	node, kube, seen, w := nodeWithoutNetworks(t)
	kube.PrependReactor("patch", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
		now := node.DeepCopy()
		now.Spec.PodCIDR, now.Spec.PodCIDRs = "10.0.0.0/24", []string{"10.0.0.0/24"}
		if err := seen.Update(now); err != nil {
			t.Error(err)
		}
		w.forget("n")
		return false, nil, nil
	})
	nodes := kube.CoreV1().Nodes()
	patching := sparingNodes{nodes, sparing{write: nodepatch.New(nodes), written: w}}
	patch := []byte(`{"spec":{"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24"]}}`)
	if _, err := patching.Patch(t.Context(), "n", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(w.networks) != 0 {
		t.Errorf("%v is still on record", w.networks)
	}
}

// Regression: if the event of a Node's end came before the API server's answer about its networks,
// these stayed on record, and taken.
func TestWrittenNetworksOfANodeThatGoes(t *testing.T) { nodeGoesMeanwhile(t, nil) }

// Regression: if the Node's end came before the networks, these were freed twice, and another node
// could have them already.
func TestNetworksOfANodeThatGoesAreFreedOnce(t *testing.T) {
	nodeGoesMeanwhile(t, apierrors.NewNotFound(corev1.Resource("nodes"), "n"))
}

// nodeGoesMeanwhile has the event of a Node's end come before the API server's answer about the
// Node's networks. The allocator frees them with the event, and again after an error.
func nodeGoesMeanwhile(t *testing.T, answer error) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "first"}}
	kube := fake.NewClientset(node)
	factory := informers.NewSharedInformerFactory(kube, 0)
	informer := factory.Core().V1().Nodes()
	w := &written{nodes: informer.Lister()}
	freed := make(chan []string, 1)
	_, err := ownNodes{NodeInformer: informer, written: w}.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(obj any) { freed <- obj.(*corev1.Node).Spec.PodCIDRs },
	})
	if err != nil {
		t.Fatal(err)
	}
	watched := testkit.Watched(kube, "nodes")
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	watched(t)
	var got []string
	kube.PrependReactor("patch", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
		if err := kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", "n"); err != nil {
			t.Error(err)
		}
		got = <-freed
		return true, node, answer
	})
	nodes := kube.CoreV1().Nodes()
	patching := sparingNodes{nodes, sparing{write: nodepatch.New(nodes), written: w}}
	patch := []byte(`{"spec":{"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24"]}}`)
	if _, err := patching.Patch(t.Context(), "n", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(w.networks) != 0 || !slices.Equal(got, []string{"10.0.0.0/24"}) {
		t.Errorf("on record: %v; freed: %v", w.networks, got)
	}
}

// What was not written is not on record.
func TestNetworksThatAreNotWritten(t *testing.T) {
	_, kube, _, w := nodeWithoutNetworks(t)
	kube.PrependReactor("patch", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(corev1.Resource("nodes"), "n")
	})
	nodes := kube.CoreV1().Nodes()
	_, err := sparingNodes{nodes, sparing{write: nodepatch.New(nodes), written: w}}.Patch(t.Context(), "n", types.StrategicMergePatchType,
		[]byte(`{"spec":{"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24"]}}`), metav1.PatchOptions{})
	if !apierrors.IsNotFound(err) || len(w.networks) != 0 {
		t.Errorf("%v; on record: %v", err, w.networks)
	}
}

// Networks are written to the Node that they were taken for. Regression: they could go to a new one
// of its name, and were free as soon as the event of the former one's end came.
func TestNetworksAreOfOneNode(t *testing.T) {
	kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "second"}})
	seen := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	if err := seen.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "first"}}); err != nil {
		t.Fatal(err)
	}
	nodes := kube.CoreV1().Nodes()
	patching := sparingNodes{nodes, sparing{write: nodepatch.New(nodes), written: &written{nodes: corelisters.NewNodeLister(seen)}}}
	_, _ = patching.Patch(t.Context(), "n", types.StrategicMergePatchType,
		[]byte(`{"spec":{"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24"]}}`), metav1.PatchOptions{}) // the fake does not compare UIDs
	actions := kube.Actions()
	if len(actions) != 1 {
		t.Fatalf("requests %v", actions)
	}
	patch, ok := actions[0].(ktesting.PatchAction)
	if !ok || !bytes.Contains(patch.GetPatch(), []byte(`"uid":"first"`)) {
		t.Errorf("request %v", actions[0])
	}
}

// Only a patch of nothing else is joined with what others write.
func TestPatchOfNetworks(t *testing.T) {
	for patch, want := range map[string][]string{
		`{"spec":{"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24"]}}`:                  {"10.0.0.0/24"},
		`{"spec":{"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24"],"providerID":"x"}}`: nil,
		`{"spec":{"podCIDR":"10.0.1.0/24","podCIDRs":["10.0.0.0/24"]}}`:                  nil,
		`{"metadata":{"labels":{"a":"b"}},"spec":{"podCIDR":"x","podCIDRs":["x"]}}`:      nil,
		`{"spec":{"podCIDRs":[]}}`: nil,
		`{`:                        nil,
	} {
		if got := networksOf([]byte(patch)); !slices.Equal(got, want) {
			t.Errorf("%s sets %v, want %v", patch, got, want)
		}
	}
}

// nodeWithoutNetworks is a Node that the API has and an informer has seen, and a record of
// networks.
func nodeWithoutNetworks(t *testing.T) (*corev1.Node, *fake.Clientset, cache.Indexer, *written) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "first"}}
	kube := fake.NewClientset(node)
	seen := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	if err := seen.Add(node); err != nil {
		t.Fatal(err)
	}
	return node, kube, seen, &written{nodes: corelisters.NewNodeLister(seen)}
}
