package kubelet

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	listersv1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/kubelet/cgroups"
	"github.com/coracle-project/coracle/cluster/kubelet/cri/critest"
	"github.com/coracle-project/coracle/cluster/kubelet/pod"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/podlogs"
	"github.com/coracle-project/coracle/cluster/kubelet/probe"
	"github.com/coracle-project/coracle/cluster/kubelet/status"
	"github.com/coracle-project/coracle/cluster/kubelet/volume"
)

// staticBench is a kubelet of static pods only, on a runtime in memory. Its pods have failed
// before, so nothing of them is run.
type staticBench struct {
	*Kubelet
	t       *testing.T
	runtime *critest.Fake
	kube    *fake.Clientset
}

func onStaticBench(t *testing.T, f func(b *staticBench)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := &staticBench{t: t, runtime: critest.New(), kube: fake.NewClientset()}
		ctx, cancel := context.WithCancel(t.Context())
		runtime, events := b.runtime.Client(), record.NewFakeRecorder(100)
		nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
		if err := nodes.Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node"}}); err != nil {
			t.Fatal(err)
		}
		set := &client.Set{Kube: b.kube}
		b.Kubelet = &Kubelet{
			opts: Options{Log: discard, NodeName: "n"}, cri: runtime, set: set, recorder: events,
			watched: watched{name: "n", nodes: listersv1.NewNodeLister(nodes)},
			volumes: volume.New(set, volume.Options{RootDir: dir, NodeName: "n"}),
			began:   make(chan struct{}),
		}
		b.status = status.NewWriter(ctx, b.kube, discard)
		probes := probe.New(runtime.Exec, events, b.wake)
		b.runner = pod.NewRunner(ctx, pod.Config{
			CRI: runtime, Volumes: b.volumes, Cgroups: cgroups.Off("a test", 0, discard), Users: noUsers{}, Status: b.status, Probes: probes,
			Recorder: events, HostIPs: func() []string { return nil }, RootDir: dir, Logs: podlogs.Dirs{All: filepath.Join(dir, "logs")},
			Gone: func(uid types.UID) { b.static.gone(uid) },
		})
		b.admit, b.static = newAdmission(b.Kubelet), newStatic(b.Kubelet)
		close(b.static.seen)
		close(b.began)
		defer b.status.Wait()
		defer b.runner.Wait()
		defer cancel()
		defer probes.Close()
		defer b.static.queue.ShutDown()
		f(b)
	})
}

// fromFile is static pod ns/p as its file has it; another version of the file is another pod.
func fromFile(version string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "p", UID: types.UID(version),
		Annotations: map[string]string{kubetypes.ConfigSourceAnnotationKey: kubetypes.FileSource, kubetypes.ConfigHashAnnotationKey: version},
	}}
	p.Status.Phase = v1.PodFailed
	return p
}

// running returns the UID of the static pod that is managed, "" for none.
func (b *staticBench) running() types.UID {
	synctest.Wait()
	b.static.mu.Lock()
	defer b.static.mu.Unlock()
	if p := b.static.running["p_ns"]; p != nil {
		return p.UID
	}
	return ""
}

// Regression: such a pod ran on without a file, and a changed or deleted file changed nothing.
func TestAStaticPodWhoseFileComesBackWhileItEnds(t *testing.T) {
	onStaticBench(t, func(b *staticBench) {
		p := fromFile("1")
		b.static.start(p)
		if got := b.running(); got != "1" {
			t.Fatalf("running %q", got)
		}
		mirror := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "p", UID: "mirror", Annotations: map[string]string{kubetypes.ConfigMirrorAnnotationKey: "1"},
		}}
		mirror.Status.Phase = v1.PodFailed
		if _, err := b.kube.CoreV1().Pods("ns").Create(b.t.Context(), mirror, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		b.static.mirror(mirror)
		release := b.runtime.Block("ListPodSandbox") // the end takes its time
		b.static.stop(p)
		synctest.Wait()
		b.static.start(p)
		release()
		if got := b.running(); got != "1" {
			t.Errorf("running %q", got)
		}
		if v, ok := b.runner.View("1"); !ok || v.Removed {
			t.Error("it has not been started again")
		}
		b.static.lookAtMirror(b.t.Context())
		if _, err := b.kube.CoreV1().Pods("ns").Get(b.t.Context(), "p", metav1.GetOptions{}); err == nil {
			t.Error("the mirror of the run that is over stays")
		}

		b.static.stop(p)
		b.static.start(fromFile("2"))
		if got := b.running(); got != "2" {
			t.Errorf("running %q after its file was changed", got)
		}
		if _, ok := b.runner.View("1"); ok {
			t.Error("the pod of the file's former content has not ended")
		}
		b.static.stop(fromFile("2"))
		if got := b.running(); got != "" {
			t.Errorf("running %q without a file", got)
		}
	})
}
