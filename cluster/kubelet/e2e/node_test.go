package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/kubelet"
	"github.com/coracle-project/coracle/cluster/kubelet/eviction"
)

const nodeName = "n1"

// patience bounds what a test waits for, on however slow a machine; it is never the time that a
// test takes.
const patience = 5 * time.Minute

// testNode is a kubelet on a runtime of its own, with an API that is only in memory: it keeps
// objects and tells of changes, and nothing else happens in it by itself.
type testNode struct {
	t        *testing.T
	ctx      context.Context
	kube     *fake.Clientset
	set      *client.Set
	kubelet  *kubelet.Kubelet
	stop     func()
	runtime  *daemon
	registry string
	image    string
	dir      string
	opts     kubelet.Options
	pods     cache.SharedIndexInformer
	changes  chan *v1.Pod
	uids     int
}

// uids are those that the API gives.
var uids atomic.Int64

func asPod(o runtime.Object) *v1.Pod {
	if p, ok := o.(*v1.Pod); ok {
		return p
	}
	return &v1.Pod{}
}

func newNode(t *testing.T, change func(*kubelet.Options)) *testNode {
	t.Helper()
	registry, image := startRegistry(t)
	n := &testNode{t: t, kube: fake.NewClientset(), registry: registry, image: image, dir: scratch(t), changes: make(chan *v1.Pod, 4096)}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	n.ctx = ctx
	n.kube.PrependReactor("create", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if made, ok := a.(k8stesting.CreateAction); ok {
			o, err := meta.Accessor(made.GetObject())
			if err == nil && (a.GetResource().Resource == "nodes" || kubetypes.IsMirrorPod(asPod(made.GetObject()))) {
				o.SetUID(types.UID(fmt.Sprintf("%s-%d", o.GetName(), uids.Add(1))))
			}
		}
		return false, nil, nil
	})
	n.version()
	n.runtime = startRuntime(t, registry)
	n.opts = kubelet.Options{
		NodeName: nodeName, NodeIPs: []string{"127.0.0.1"}, Endpoint: "unix://" + n.runtime.socket,
		RootDir: filepath.Join(n.dir, "kubelet"), LogDir: filepath.Join(n.dir, "pods"), Port: -1,
		CgroupRoot: "/" + filepath.Base(n.dir), ClusterDNS: []string{"10.96.0.10"},
		// How much room the machine has is not the tests' business.
		Eviction: eviction.Policy{Hard: map[evictionapi.Signal]evictionapi.ThresholdValue{}},
	}
	if change != nil {
		change(&n.opts)
	}
	shared := informers.NewSharedInformerFactory(n.kube, 0)
	n.pods = shared.Core().V1().Pods().Informer()
	if _, err := n.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { n.changes <- o.(*v1.Pod) },
		UpdateFunc: func(_, o any) { n.changes <- o.(*v1.Pod) },
		DeleteFunc: func(o any) {
			if p, ok := o.(*v1.Pod); ok {
				p = p.DeepCopy()
				p.Labels = map[string]string{"gone": ""}
				n.changes <- p
			}
		},
	}); err != nil {
		t.Fatal(err)
	}
	n.set = &client.Set{Kube: n.kube, Informers: shared}
	n.start()
	t.Cleanup(n.removeCgroups)
	t.Cleanup(func() { n.stop() })
	t.Cleanup(n.removeAll)
	return n
}

// version has the API give pods the versions that the fake leaves out. Without them the kubelet
// cannot tell that the answer to its own write is older than the change that it was told of
// meanwhile: it forgot a deletion, and the pod stayed forever.
func (n *testNode) version() {
	last := 0 // the clientset calls reactors one at a time
	next := func() string { last++; return fmt.Sprint(last) }
	set := func(a k8stesting.Action) (bool, runtime.Object, error) {
		if made, ok := a.(k8stesting.CreateAction); ok { // an update has the same methods
			if o, err := meta.Accessor(made.GetObject()); err == nil {
				o.SetResourceVersion(next())
			}
		}
		return false, nil, nil
	}
	n.kube.PrependReactor("create", "pods", set)
	n.kube.PrependReactor("update", "pods", set)
	n.kube.PrependReactor("patch", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		p, ok := a.(k8stesting.PatchActionImpl)
		if !ok {
			return true, nil, fmt.Errorf("patch of type %T", a)
		}
		var patch map[string]any
		if err := json.Unmarshal(p.Patch, &patch); err != nil {
			return true, nil, err
		}
		about, _ := patch["metadata"].(map[string]any)
		if about == nil {
			about = map[string]any{}
		}
		about["resourceVersion"], patch["metadata"] = next(), about
		var err error
		if p.Patch, err = json.Marshal(patch); err != nil {
			return true, nil, err
		}
		return k8stesting.ObjectReaction(n.kube.Tracker())(p)
	})
}

// start starts the kubelet; stop, which it sets, ends it and leaves the containers.
func (n *testNode) start() {
	n.t.Helper()
	k, err := kubelet.New(n.set, n.opts)
	if err != nil {
		n.t.Fatal(err)
	}
	n.kubelet = k
	ctx, cancel := context.WithCancel(n.ctx)
	n.set.Informers.Start(n.ctx.Done())
	n.set.Informers.WaitForCacheSync(n.ctx.Done())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	n.stop = func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				n.t.Error(err)
			}
			done <- nil
		case <-time.After(patience):
			n.t.Error("the kubelet does not end")
		}
	}
}

// removeAll deletes the test's pods, as their controller would.
func (n *testNode) removeAll() {
	list, err := n.kube.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		n.t.Error(err)
		return
	}
	for i := range list.Items {
		p := &list.Items[i]
		if _, static := p.Annotations["kubernetes.io/config.mirror"]; static {
			continue
		}
		if p.DeletionTimestamp == nil {
			n.delete(p, 1)
		}
		n.until(p, "gone", gone)
	}
}

// removeCgroups removes what the kubelet and the runtime made above pods, in all hierarchies.
func (n *testNode) removeCgroups() {
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*")
	if err != nil {
		n.t.Error(err)
	}
	for _, h := range append(hierarchies, "/sys/fs/cgroup") {
		for _, sub := range []string{"kubepods/burstable", "kubepods/besteffort", "kubepods", "."} {
			_ = os.Remove(filepath.Join(h, n.opts.CgroupRoot, sub))
		}
	}
}

// pod is a pod on the node with these containers; each is given the guest's image unless it has
// one.
func (n *testNode) pod(name string, containers ...v1.Container) *v1.Pod {
	n.uids++
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "default", UID: types.UID(fmt.Sprintf("%s-%d-%d", name, os.Getpid(), n.uids)), Generation: 1,
	}}
	p.Spec = v1.PodSpec{
		NodeName: nodeName, RestartPolicy: v1.RestartPolicyAlways, DNSPolicy: v1.DNSClusterFirst,
		TerminationGracePeriodSeconds: ptr.To(int64(5)), SecurityContext: &v1.PodSecurityContext{},
		Containers: containers, EnableServiceLinks: ptr.To(false),
	}
	n.defaults(p)
	return p
}

// defaults sets what the API would.
func (n *testNode) defaults(p *v1.Pod) {
	for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			c := &list[i]
			if c.Image == "" {
				c.Image = n.image
			}
			if c.ImagePullPolicy == "" {
				c.ImagePullPolicy = v1.PullIfNotPresent
			}
			c.TerminationMessagePath, c.TerminationMessagePolicy = "/dev/termination-log", v1.TerminationMessageReadFile
			for _, probe := range []*v1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
				if probe != nil {
					probe.PeriodSeconds, probe.TimeoutSeconds = max(probe.PeriodSeconds, 1), max(probe.TimeoutSeconds, 60)
					probe.SuccessThreshold, probe.FailureThreshold = max(probe.SuccessThreshold, 1), max(probe.FailureThreshold, 1)
				}
			}
		}
	}
}

func container(name string, args ...string) v1.Container {
	return v1.Container{Name: name, Args: args}
}

func (n *testNode) create(p *v1.Pod) *v1.Pod {
	n.t.Helper()
	made, err := n.kube.CoreV1().Pods(p.Namespace).Create(n.ctx, p, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return made
}

// delete starts a graceful deletion, as the API does for a pod that has a node. It is a patch: an
// object that was read before would take a status back that the kubelet has written meanwhile.
func (n *testNode) delete(p *v1.Pod, grace int64) {
	n.t.Helper()
	at := time.Now().Add(time.Duration(grace) * time.Second).UTC().Format(time.RFC3339)
	patch := fmt.Sprintf(`{"metadata":{"deletionTimestamp":%q,"deletionGracePeriodSeconds":%d}}`, at, grace)
	if _, err := n.kube.CoreV1().Pods(p.Namespace).Patch(context.Background(), p.Name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// until waits for a state of the pod, which what describes, and returns it.
func (n *testNode) until(p *v1.Pod, what string, ok func(*v1.Pod) bool) *v1.Pod {
	n.t.Helper()
	var last *v1.Pod
	if now, exists, _ := n.pods.GetStore().GetByKey(p.Namespace + "/" + p.Name); exists {
		last = now.(*v1.Pod)
		if last.UID == p.UID && ok(last) {
			return last
		}
	} else {
		gone := p.DeepCopy()
		gone.Labels = map[string]string{"gone": ""}
		if ok(gone) {
			return gone
		}
	}
	timeout := time.After(patience)
	for {
		select {
		case now := <-n.changes:
			if now.UID != p.UID {
				continue
			}
			last = now
			if ok(now) {
				return now
			}
		case <-timeout:
			n.t.Fatalf("pod %s is not %s; its status:\n%s\nevents:\n%s", p.Name, what, describe(last), n.events(p))
		}
	}
}

func gone(p *v1.Pod) bool { _, ok := p.Labels["gone"]; return ok }

func ready(p *v1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

func phase(want v1.PodPhase) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool { return p.Status.Phase == want }
}

func describe(p *v1.Pod) string {
	if p == nil {
		return "(none)"
	}
	return strings.ReplaceAll(p.Status.String(), ",", ",\n  ")
}

// events returns what was recorded about a pod, one line each.
func (n *testNode) events(p *v1.Pod) string {
	list, err := n.kube.CoreV1().Events(p.Namespace).List(context.Background(),
		metav1.ListOptions{FieldSelector: fields.Everything().String()})
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range list.Items {
		if e.InvolvedObject.UID == p.UID {
			fmt.Fprintf(&b, "%s %s %s\n", e.Type, e.Reason, e.Message)
		}
	}
	return b.String()
}

// untilEvent waits for an event about a pod that contains text.
func (n *testNode) untilEvent(p *v1.Pod, text string) {
	n.t.Helper()
	w, err := n.kube.CoreV1().Events(p.Namespace).Watch(n.ctx, metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	defer w.Stop()
	timeout := time.After(patience)
	for !strings.Contains(n.events(p), text) {
		select {
		case <-w.ResultChan():
		case <-timeout:
			n.t.Fatalf("no event %q; there are:\n%s", text, n.events(p))
		}
	}
}

// emptyDir gives all containers of a pod one directory, /shared.
func emptyDir(p *v1.Pod) *v1.Pod {
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "shared", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			list[i].VolumeMounts = append(list[i].VolumeMounts, v1.VolumeMount{Name: "shared", MountPath: "/shared"})
		}
	}
	return p
}

// log reads a container's log of one of its runs, without times and streams.
func (n *testNode) log(p *v1.Pod, container string, restart int) string {
	content, err := os.ReadFile(filepath.Join(n.opts.LogDir, fmt.Sprintf("%s_%s_%s", p.Namespace, p.Name, p.UID), container,
		fmt.Sprintf("%d.log", restart)))
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for line := range strings.Lines(string(content)) {
		if fields := strings.SplitN(line, " ", 4); len(fields) == 4 {
			b.WriteString(fields[3])
		}
	}
	return b.String()
}
