package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	nodeutil "k8s.io/component-helpers/node/util"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri/critest"
)

func TestResources(t *testing.T) {
	m := Machine{CPUs: 2, MemoryBytes: 8 << 30, StorageBytes: 100 << 30, HugePages: map[int64]int64{2 << 20: 1 << 30}}
	capacity, allocatable := Resources(m, 110)
	for name, want := range map[v1.ResourceName][2]string{
		v1.ResourceCPU:    {"2", "2"},
		v1.ResourceMemory: {"8Gi", "7068Mi"}, // 100 Mi and the huge pages are kept
		v1.ResourcePods:   {"110", "110"},
		"hugepages-2Mi":   {"1Gi", "1Gi"},
	} {
		c, a := capacity[name], allocatable[name]
		if c.String() != want[0] || a.String() != want[1] {
			t.Errorf("%s: %s and %s, want %v", name, c.String(), a.String(), want)
		}
	}
	if c, a := capacity.StorageEphemeral().Value(), allocatable.StorageEphemeral().Value(); a != c-c/100*10 {
		t.Errorf("storage %d of %d", a, c)
	}
}

func TestNotReady(t *testing.T) {
	condition := func(name string, ok bool) *runtimeapi.RuntimeCondition {
		return &runtimeapi.RuntimeCondition{Type: name, Status: ok, Reason: "R", Message: "M"}
	}
	for name, tc := range map[string]struct {
		conditions []*runtimeapi.RuntimeCondition
		want       string
	}{
		"ready": {[]*runtimeapi.RuntimeCondition{condition("RuntimeReady", true), condition("NetworkReady", true)}, ""},
		"no network": {
			[]*runtimeapi.RuntimeCondition{condition("RuntimeReady", true), condition("NetworkReady", false)},
			"container runtime network not ready: NetworkReady=false reason:R message:M",
		},
		"no runtime": {
			[]*runtimeapi.RuntimeCondition{condition("RuntimeReady", false), condition("NetworkReady", false)},
			"container runtime not ready: RuntimeReady=false reason:R message:M",
		},
		"the runtime's own network": {
			[]*runtimeapi.RuntimeCondition{
				condition("RuntimeReady", true), {Type: "NetworkReady", Status: true, Reason: "BuiltInNetwork", Message: "no CNI configuration"},
			}, "",
		},
		"silence": {nil, "container runtime not ready: the runtime does not say whether it is"},
	} {
		got := ""
		if err := new(Reporter).notReady(tc.conditions); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Where only a network plugin may connect pods, the runtime's own network makes no node Ready.
func TestANetworkPluginIsAwaited(t *testing.T) {
	kube, f := fake.NewClientset(), critest.New()
	r := reporter(t, kube, f)
	r.config.PluginNetwork = true
	for _, c := range []struct {
		network *runtimeapi.RuntimeCondition
		reason  string
		message string
	}{
		{&runtimeapi.RuntimeCondition{Status: true, Reason: "BuiltInNetwork", Message: "no CNI in /x"}, NoPlugin, "no CNI in /x"},
		{&runtimeapi.RuntimeCondition{Reason: "NetworkNotReady", Message: "the plugin is missing"}, NoPlugin, "the plugin is missing"},
		{&runtimeapi.RuntimeCondition{Status: true}, "KubeletReady", ""},
	} {
		f.SetNetwork(c.network)
		n := r.initial()
		if ready := r.fill(t.Context(), n); ready != (c.message == "") {
			t.Errorf("%s: ready is %t", c.network.Message, ready)
		}
		_, got := nodeutil.GetNodeCondition(&n.Status, v1.NodeReady)
		if got.Reason != c.reason || !strings.Contains(got.Message, c.message) {
			t.Errorf("%+v: %+v", c.network, got)
		}
		if err := r.NetworkErr(t.Context()); (err == nil) != (c.message == "") {
			t.Errorf("%s: a pod is refused with %v", c.network.Message, err)
		}
	}
}

// reporter is one of a node whose runtime is in memory.
func reporter(t *testing.T, kube *fake.Clientset, f *critest.Fake) *Reporter {
	t.Helper()
	r, err := New(Config{
		Name: "n1", Addresses: []string{"192.0.2.1"}, MaxPods: 10, Port: 10250, RootDir: "/",
		Labels: map[string]string{"own": "x"},
	},
		kube, f.Client(), func() (*v1.Node, error) {
			return kube.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
		},
		record.NewFakeRecorder(100))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTheNodeIsReadyFromItsFirstMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube, f := fake.NewClientset(), critest.New("i")
		f.SetReady("")
		r := reporter(t, kube, f)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		synctest.Wait()
		n, err := kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, ready := nodeutil.GetNodeCondition(&n.Status, v1.NodeReady)
		if ready == nil || ready.Status != v1.ConditionTrue || ready.Reason != "KubeletReady" {
			t.Errorf("condition %+v", ready)
		}
		if n.Labels["own"] != "x" || n.Labels[v1.LabelHostname] != "n1" || n.Status.NodeInfo.ContainerRuntimeVersion != "fake://1" ||
			n.Status.Addresses[0].Address != "192.0.2.1" || len(n.Status.Images) != 1 {
			t.Errorf("%+v", n)
		}
		if last := n.Status.Conditions[len(n.Status.Conditions)-1]; last.Type != v1.NodeReady {
			t.Errorf("the last condition is %s", last.Type)
		}
		want := []string{
			"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
			"RestartAllContainersOnContainerExits",
		}
		if !slices.Equal(n.Status.DeclaredFeatures, want) {
			t.Errorf("declared features %v", n.Status.DeclaredFeatures)
		}
		lease, err := kube.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil || *lease.Spec.LeaseDurationSeconds != leaseSeconds {
			t.Errorf("lease %+v, %v", lease, err)
		}
		// An hour in which nothing happens is told by leases, and by the status every five minutes.
		kube.ClearActions()
		time.Sleep(time.Hour)
		synctest.Wait()
		statuses := 0
		for _, a := range kube.Actions() {
			if a.GetResource().Resource == "nodes" && a.GetVerb() == "patch" {
				statuses++
			}
		}
		if statuses < 11 || statuses > 13 {
			t.Errorf("%d writes of the status in an hour", statuses)
		}
		// What breaks is told within ten seconds.
		f.SetReady("no network")
		time.Sleep(checkEvery + time.Second)
		synctest.Wait()
		if n, err = kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, ready = nodeutil.GetNodeCondition(&n.Status, v1.NodeReady); ready.Status != v1.ConditionFalse ||
			!strings.Contains(ready.Message, "no network") || r.Err() == nil {
			t.Errorf("condition %+v", ready)
		}
		cancel()
		<-done
	})
}

// A process with an API server of its own registers the node before Run may begin.
func TestTheNodeIsIntroduced(t *testing.T) {
	for name, tc := range map[string]struct {
		exists, down bool
		want         bool // whether Introduce has made the node
	}{
		"first start":                 {want: true},
		"the API has it":              {exists: true},
		"the runtime does not answer": {down: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			kube, f := fake.NewClientset(), critest.New()
			f.SetReady("")
			if tc.exists {
				old := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
				if _, err := kube.CoreV1().Nodes().Create(t.Context(), old, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if tc.down {
				f.Fail("Version", errors.New("connection refused"))
			}
			r := reporter(t, kube, f)
			creations := func() (n int) {
				for _, a := range kube.Actions() {
					if a.Matches("create", "nodes") {
						n++
					}
				}
				kube.ClearActions()
				return n
			}
			creations()
			r.Introduce(t.Context())
			if made := creations() == 1; made != tc.want {
				t.Errorf("%s: made %t, want %t", name, made, tc.want)
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); r.Run(ctx) }()
			synctest.Wait()
			if made := creations() == 1; tc.want && made {
				t.Errorf("%s: Run has made the node again", name)
			}
			n, err := kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil || n.Labels["own"] != "x" {
				t.Errorf("%s: %+v, %v", name, n, err)
			}
			stop()
			<-done
		})
	}
}

// Regression: Introduce waited for a runtime without a socket, and Run waited for Introduce. The
// node was not registered before the runtime answered, and a process that was to end did not.
func TestTheNodeIsNotIntroducedForLong(t *testing.T) {
	for name, after := range map[string]time.Duration{"Run is ended meanwhile": askTimeout / 2, "Run goes on": time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			kube, f := fake.NewClientset(), critest.New()
			release := f.Block("Version")
			defer release()
			r := reporter(t, kube, f)
			introduction, forget := context.WithCancel(t.Context())
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			defer running.Wait()
			running.Go(func() { r.Introduce(introduction) })
			synctest.Wait()
			ended := make(chan struct{})
			go func() { defer close(ended); r.Run(ctx) }()
			time.Sleep(after)
			_, err := kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if registered := err == nil; registered != (after > askTimeout) {
				t.Errorf("%s: after %v: %v", name, after, err)
			}
			stop()
			synctest.Wait()
			select {
			case <-ended:
			default:
				t.Errorf("%s: Run goes on", name)
			}
			forget()
			<-ended
		})
	}
}

func TestARuntimeThatIsDown(t *testing.T) {
	kube, f := fake.NewClientset(), critest.New()
	f.Fail("Version", errors.New("connection refused"))
	r := reporter(t, kube, f)
	n := r.initial()
	if r.fill(t.Context(), n) {
		t.Error("ready without a runtime")
	}
	if _, c := nodeutil.GetNodeCondition(&n.Status, v1.NodeReady); c.Reason != "KubeletNotReady" ||
		!strings.HasPrefix(c.Message, "container runtime is down: ") {
		t.Errorf("%+v", c)
	}
}

func TestPressureIsTold(t *testing.T) {
	r := reporter(t, fake.NewClientset(), critest.New())
	events := record.NewFakeRecorder(10)
	r.recorder = events
	n := r.initial()
	for _, tc := range []struct {
		short  []v1.NodeConditionType
		memory v1.NodeCondition
		event  string
	}{
		{nil, v1.NodeCondition{
			Status: v1.ConditionFalse, Reason: "KubeletHasSufficientMemory",
			Message: "kubelet has sufficient memory available",
		}, "NodeHasSufficientMemory"},
		{[]v1.NodeConditionType{v1.NodeMemoryPressure}, v1.NodeCondition{
			Status: v1.ConditionTrue, Reason: "KubeletHasInsufficientMemory",
			Message: "kubelet has insufficient memory available",
		}, "NodeHasInsufficientMemory"},
		{nil, v1.NodeCondition{
			Status: v1.ConditionFalse, Reason: "KubeletHasSufficientMemory",
			Message: "kubelet has sufficient memory available",
		}, "NodeHasSufficientMemory"},
	} {
		r.config.Pressure = func() []v1.NodeConditionType { return tc.short }
		r.conditions(n, nil, metav1.Now())
		_, c := nodeutil.GetNodeCondition(&n.Status, v1.NodeMemoryPressure)
		if c.Status != tc.memory.Status || c.Reason != tc.memory.Reason || c.Message != tc.memory.Message {
			t.Errorf("%+v, want %+v", c, tc.memory)
		}
		if got := <-events.Events; got != "Normal "+tc.event+" Node n1 status is now: "+tc.event {
			t.Errorf("event %q", got)
		}
		if _, disk := nodeutil.GetNodeCondition(&n.Status, v1.NodeDiskPressure); disk.Status != v1.ConditionFalse {
			t.Errorf("%+v", disk)
		}
		for len(events.Events) > 0 { // the other conditions' first
			<-events.Events
		}
	}
}

func TestVolumesInUseAreReported(t *testing.T) {
	kube := fake.NewClientset()
	r := reporter(t, kube, critest.New())
	var inUse, told []v1.UniqueVolumeName
	r.config.VolumesInUse = func([]v1.UniqueVolumeName) []v1.UniqueVolumeName { return inUse }
	r.config.Reported = func(all []v1.UniqueVolumeName) { told = all }
	saved := func() []v1.UniqueVolumeName {
		t.Helper()
		n, err := kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return n.Status.VolumesInUse
	}
	inUse = []v1.UniqueVolumeName{"kubernetes.io/csi/d^1"}
	r.register(t.Context()) // a node that is made has them from its first moment
	if !slices.Equal(saved(), inUse) || !slices.Equal(told, inUse) {
		t.Errorf("registered with %v, told %v", saved(), told)
	}
	// The informer has an old copy, which happens to have what is to be written.
	stale, err := r.get()
	if err != nil {
		t.Fatal(err)
	}
	inUse = nil
	if _, err := r.report(t.Context()); err != nil || len(saved()) != 0 || len(told) != 0 {
		t.Errorf("reported %v, told %v, %v", saved(), told, err)
	}
	r.get = func() (*v1.Node, error) { return stale, nil }
	inUse = []v1.UniqueVolumeName{"kubernetes.io/csi/d^1"}
	if _, err := r.report(t.Context()); err != nil || !slices.Equal(saved(), inUse) || !slices.Equal(told, inUse) {
		t.Errorf("reported %v, told %v, %v", saved(), told, err)
	}
}
