package scheduler_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/scheduler"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/scheduler"
)

// workload is what BenchmarkSchedule schedules.
type workload struct {
	name        string
	nodes, pods int
	pod         func(i int) *v1.Pod
}

func benchPod(i int) *v1.Pod {
	name := fmt.Sprintf("pod-%d", i)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName,
			Containers: []v1.Container{{Name: "c", Image: "web", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
				v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("100Mi"),
			}}}},
			Tolerations: []v1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute},
				{Key: "node.kubernetes.io/unreachable", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute},
			},
		},
	}
}

var workloads = []workload{
	{"plain", 1000, 5000, benchPod},
	{"replicaset", 1000, 5000, func(i int) *v1.Pod {
		pod, yes := benchPod(i), true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", Controller: &yes}}
		return pod
	}},
	{"spread", 1000, 2000, func(i int) *v1.Pod {
		pod := benchPod(i)
		pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}}
		return pod
	}},
	{"anti-affinity", 1000, 1000, func(i int) *v1.Pod {
		pod := benchPod(i)
		apart := v1.PodAffinityTerm{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}
		pod.Spec.Affinity = &v1.Affinity{
			PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{apart}},
		}
		return pod
	}},
}

func benchNode(i int) *v1.Node {
	name := fmt.Sprintf("node-%d", i)
	allocatable := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("32Gi"), v1.ResourcePods: resource.MustParse("110"),
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{
			v1.LabelHostname: name, v1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
		}},
		Status: v1.NodeStatus{
			Allocatable: allocatable, Capacity: allocatable,
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		},
	}
}

// rig is an API server without a network, that binds pods and drops events.
type rig struct {
	client    *fake.Clientset
	informers informers.SharedInformerFactory
	bound     atomic.Int64
	all       chan struct{}
}

func newRig(w workload) *rig {
	r := &rig{all: make(chan struct{})}
	objects := []runtime.Object{
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		&appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		},
	}
	for i := range w.nodes {
		objects = append(objects, benchNode(i))
	}
	pods := make(map[string]*v1.Pod)
	for i := range w.pods {
		pod := w.pod(i)
		pods[pod.Name] = pod
		objects = append(objects, pod)
	}
	r.client = fake.NewSimpleClientset(objects...)
	// Its own watch: the tracker's panics when more than 100 events wait.
	events := watch.NewFakeWithChanSize(len(pods), false)
	r.client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) { return true, events, nil })
	r.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "binding" {
			return false, nil, nil
		}
		b := a.(clienttesting.CreateAction).GetObject().(*v1.Binding)
		pod := *pods[b.Name]
		pod.Spec.NodeName, pod.ResourceVersion = b.Target.Name, "2"
		events.Modify(&pod)
		if r.bound.Add(1) == int64(len(pods)) {
			close(r.all)
		}
		return true, b, nil
	})
	r.informers = informers.NewSharedInformerFactory(r.client, 0)
	return r
}

// BenchmarkSchedule measures from the start of a scheduler, with all pods waiting, until the last
// is bound: ours and upstream's over the same API server.
func BenchmarkSchedule(b *testing.B) {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	for _, w := range workloads {
		for _, impl := range []struct {
			name string
			run  func(context.Context, *rig) (start func())
		}{{"coracle", startOurs}, {"kube-scheduler", startUpstream}} {
			b.Run(w.name+"/"+impl.name, func(b *testing.B) {
				var took, cpu time.Duration
				for b.Loop() {
					b.StopTimer()
					r := newRig(w)
					ctx, cancel := context.WithCancel(context.Background())
					start := impl.run(ctx, r)
					b.StartTimer()
					began, cpuBegan := time.Now(), cpuTime()
					start()
					select {
					case <-r.all:
					case <-time.After(5 * time.Minute):
						b.Fatalf("only %d of %d pods were bound", r.bound.Load(), w.pods)
					}
					took += time.Since(began)
					cpu += cpuTime() - cpuBegan
					cancel()
				}
				b.ReportMetric(float64(b.N*w.pods)/took.Seconds(), "pods/s")
				// What counts on a machine that others use too.
				b.ReportMetric(float64(cpu.Microseconds())/float64(b.N*w.pods), "cpu-µs/pod")
			})
		}
	}
}

// cpuTime returns what this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func startOurs(ctx context.Context, r *rig) func() {
	s, err := scheduler.New(&client.Set{Kube: r.client, Informers: r.informers}, scheduler.Options{Recorder: &events.FakeRecorder{}})
	if err != nil {
		panic(err)
	}
	r.informers.Start(ctx.Done())
	r.informers.WaitForCacheSync(ctx.Done())
	return func() {
		go func() {
			if err := s.Run(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
}

func startUpstream(ctx context.Context, r *rig) func() {
	s, err := upstream.New(ctx, r.client, r.informers, nil, func(string) events.EventRecorderLogger { return &events.FakeRecorder{} })
	if err != nil {
		panic(err)
	}
	r.informers.Start(ctx.Done())
	r.informers.WaitForCacheSync(ctx.Done())
	if err := s.WaitForHandlersSync(ctx); err != nil {
		panic(err)
	}
	return func() { go s.Run(ctx) }
}
