package attachdetach

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/upstream"
)

// TestMain keeps logs out of the tests', and upstream's error handler too: it sleeps until some
// time after its last error, which another bubble's clock set.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// current is the controller that runs, nil if it has not started; kube is its client. seen, if not
// nil, is called before the cache shows an attachment.
var (
	current *controller
	kube    *fake.Clientset
	seen    func()
)

// own is the controller as New makes it.
var own = apitest.Controllers{func(set *client.Set) interface{ Run(context.Context) } {
	current, kube, seen = nil, set.Kube.(*fake.Clientset), nil
	core := set.Informers.Core().V1()
	must(0, set.Informers.Storage().V1().VolumeAttachments().Informer().SetTransform(func(obj any) (any, error) {
		if seen != nil {
			seen()
		}
		return obj, nil
	}))
	return upstream.NewOnDemand(set, name, acts, func() (*frame.Controller, error) {
		c, err := build(set)
		if err != nil {
			return nil, err
		}
		current = c
		return c.frame, nil
	}, core.PersistentVolumes().Informer(), set.Informers.Storage().V1().VolumeAttachments().Informer(), core.Nodes().Informer())
}}.As("attachdetach-controller")

const (
	driver    = "disks.example.org"
	finalizer = "external-attacher/disks-example-org"
)

var ctx = context.Background()

// world is a cluster whose kubelets and attacher are the test's.
type world struct {
	*apitest.Server
	t *testing.T
}

func run(t *testing.T, f func(w world)) {
	t.Helper()
	own.Run(t, func(t *testing.T, s *apitest.Server) { f(world{s, t}) })
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (w world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func unique(handle string) corev1.UniqueVolumeName { return volume{driver, handle}.unique() }

func attachmentOf(handle, node string) string { return volume{driver, handle}.attachment(node) }

// node makes a node that is ready, and older than what is made for it.
func (w world) node(name string) {
	w.t.Helper()
	must(w.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{volumeutil.ControllerManagedAttachAnnotation: "true"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}, metav1.CreateOptions{}))
	w.Pass(time.Millisecond)
}

// status changes a node's status, as its kubelet or the node controller.
func (w world) status(name string, change func(*corev1.NodeStatus)) {
	w.t.Helper()
	node := must(w.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}))
	change(&node.Status)
	must(w.Kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}))
	w.Settle()
}

func (w world) ready(name string, is corev1.ConditionStatus) {
	w.t.Helper()
	w.status(name, func(s *corev1.NodeStatus) { s.Conditions[0].Status = is })
}

// uses has the kubelet of a node report the volumes that it has mounted.
func (w world) uses(name string, handles ...string) {
	w.t.Helper()
	w.status(name, func(s *corev1.NodeStatus) {
		s.VolumesInUse = nil
		for _, handle := range handles {
			s.VolumesInUse = append(s.VolumesInUse, unique(handle))
		}
	})
}

// taint puts the taint of nodes out of service on a node.
func (w world) taint(name string) {
	w.t.Helper()
	node := must(w.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}))
	node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}
	must(w.Kube.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}))
	w.Settle()
}

// volume makes a PersistentVolume of the driver, pv-HANDLE, bound to the claim HANDLE.
func (w world) volume(handle string, modes ...corev1.PersistentVolumeAccessMode) {
	w.t.Helper()
	if modes == nil {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	must(w.Kube.CoreV1().PersistentVolumeClaims(apitest.Namespace).Create(ctx, claim(handle, types.UID("claim-"+handle)),
		metav1.CreateOptions{}))
	must(w.Kube.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + handle},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes,
			ClaimRef:    &corev1.ObjectReference{Namespace: apitest.Namespace, Name: handle, UID: types.UID("claim-" + handle)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle},
			},
		},
	}, metav1.CreateOptions{}))
}

func claim(handle string, uid types.UID) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: handle, Namespace: apitest.Namespace, UID: uid},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + handle},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

// pod makes a pod that runs on a node and uses claims.
func (w world) pod(name, node string, claims ...string) *corev1.Pod {
	w.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: apitest.Namespace},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		Status: corev1.PodStatus{
			Phase:             corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
	}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	pod = must(w.Kube.CoreV1().Pods(apitest.Namespace).Create(ctx, pod, metav1.CreateOptions{}))
	w.Settle()
	return pod
}

// force deletes a pod at once, as "kubectl delete --force".
func (w world) force(pod *corev1.Pod) {
	w.t.Helper()
	err := w.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})
	w.check(err)
	if _, err := w.Kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err == nil {
		w.Leave(w.t, pod)
	}
	w.Settle()
}

// attachments returns the attachments there are as "HANDLE NODE STATE", sorted.
func (w world) attachments() []string {
	w.t.Helper()
	all := []string{}
	for _, a := range must(w.Kube.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})).Items {
		state := "waits"
		switch {
		case a.DeletionTimestamp != nil:
			state = "leaves"
		case a.Status.Attached:
			state = "attached"
		}
		source := "?"
		if a.Spec.Source.PersistentVolumeName != nil {
			source = strings.TrimPrefix(*a.Spec.Source.PersistentVolumeName, "pv-")
		}
		all = append(all, fmt.Sprintf("%s %s %s", source, a.Spec.NodeName, state))
	}
	slices.Sort(all)
	return all
}

// reports returns the volumes that a node's status says are attached.
func (w world) reports(node string) []string {
	w.t.Helper()
	handles := []string{}
	for _, v := range reported(must(w.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}))) {
		handles = append(handles, v.handle)
	}
	slices.Sort(handles)
	return handles
}

// expect fails the test unless these attachments exist.
func (w world) expect(step string, want ...string) {
	w.t.Helper()
	if got := w.attachments(); !slices.Equal(got, append([]string{}, want...)) {
		w.t.Fatalf("%s: attachments %q, want %q", step, got, want)
	}
}

// expectReports fails the test unless a node's status has these volumes.
func (w world) expectReports(step, node string, want ...string) {
	w.t.Helper()
	if got := w.reports(node); !slices.Equal(got, append([]string{}, want...)) {
		w.t.Fatalf("%s: node %s reports %q, want %q", step, node, got, want)
	}
}

// attacher does what an external-attacher does with what there is now: it attaches what is not
// attached, and lets go of what is being deleted.
func (w world) attacher() {
	w.t.Helper()
	client := w.Kube.StorageV1().VolumeAttachments()
	for _, a := range must(client.List(ctx, metav1.ListOptions{})).Items {
		switch {
		case a.Spec.Attacher != driver:
		case a.DeletionTimestamp != nil:
			a.Finalizers = nil
			must(client.Update(ctx, &a, metav1.UpdateOptions{}))
		case !a.Status.Attached:
			a.Finalizers = []string{finalizer}
			now := must(client.Update(ctx, &a, metav1.UpdateOptions{}))
			now.Status = storagev1.VolumeAttachmentStatus{Attached: true}
			must(client.UpdateStatus(ctx, now, metav1.UpdateOptions{}))
		}
	}
	w.Settle()
}

// events returns the events of this controller.
func (w world) events() []string {
	w.t.Helper()
	w.Pass(2 * time.Second) // they are written in the background
	return w.Events(w.t)
}
