package eviction

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	kubelettypes "k8s.io/kubelet/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/cri/critest"
	"github.com/coracle-project/coracle/cluster/kubelet/status"
)

// machine is a node whose figures and pods are the test's. What is evicted stays in its list of
// pods until the test takes it out.
type machine struct {
	*Manager
	t       *testing.T
	runtime *critest.Fake
	events  *record.FakeRecorder
	pods    []*v1.Pod
	volumes map[string]uint64 // bytes by volume name
	free    atomic.Int64      // of the memory, in MiB of 1000
	percent int64             // free of the disk
	files   []string          // that the kubelet made for the pod's containers
	images  int64             // percent of the disk that removing unused images gives
	said    sync.Mutex
	evicted []string     // is said's
	looks   atomic.Int32 // that the node's status was asked to take
}

func newMachine(t *testing.T) *machine {
	m := &machine{
		t: t, runtime: critest.New("i"), events: record.NewFakeRecorder(100), volumes: map[string]uint64{}, percent: 50,
	}
	m.free.Store(900)
	m.Manager = New(Options{
		RootDir: "/node", ImageDir: func(context.Context) (string, error) { return "/images", nil }, Runtime: m.runtime.Client(),
		Pods: func() []*v1.Pod { return slices.Clone(m.pods) },
		Volumes: func(_ context.Context, p *v1.Pod) (all []statsapi.VolumeStats) {
			for _, v := range p.Spec.Volumes {
				used, inodes := m.volumes[v.Name], uint64(1)
				all = append(all, statsapi.VolumeStats{Name: v.Name, FsStats: statsapi.FsStats{UsedBytes: &used, InodesUsed: &inodes}})
			}
			return all
		},
		LogDir: func(*v1.Pod) string { return "/no/logs" },
		Files:  func(*v1.Pod) []string { return m.files },
		Evict: func(uid types.UID, e status.Eviction) bool {
			m.said.Lock()
			defer m.said.Unlock()
			again := slices.ContainsFunc(m.evicted, func(said string) bool { return strings.HasPrefix(said, string(uid)+" ") })
			if !again {
				m.evicted = append(m.evicted, fmt.Sprintf("%s %s %t: %s", uid, e.Reason, e.Disruption, e.Message))
			}
			return !again
		},
		Reclaim: func(context.Context) error { m.percent += m.images; m.images = 0; return nil },
		Changed: func() { m.looks.Add(1) }, Recorder: m.events, Node: &v1.ObjectReference{Name: "n"},
	})
	m.memory = func() (figure, error) { return figure{m.free.Load() << 20, 1000 << 20}, nil }
	m.disk = func(string) (diskFigures, error) {
		return diskFigures{bytes: figure{m.percent << 20, 100 << 20}, inodes: figure{50, 100}}, nil
	}
	return m
}

// pod makes a pod of one container that uses memory and disk, both in MiB.
func (m *machine) pod(name string, memory, disk uint64, edit func(*v1.Pod)) *v1.Pod {
	m.t.Helper()
	p := &v1.Pod{}
	p.Name, p.UID, p.Namespace = name, types.UID(name), "ns"
	p.Spec.Containers = []v1.Container{{Name: "c-" + name}}
	p.Spec.Containers[0].Resources.Requests, p.Spec.Containers[0].Resources.Limits = v1.ResourceList{}, v1.ResourceList{}
	if edit != nil {
		edit(p)
	}
	if _, err := m.runtime.CreateContainer(m.t.Context(), &runtimeapi.CreateContainerRequest{Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c-" + name}, Image: &runtimeapi.ImageSpec{Image: "i"},
		Labels: map[string]string{kubelettypes.KubernetesPodUIDLabel: name},
	}}); err != nil {
		m.t.Fatal(err)
	}
	m.runtime.Use("c-"+name, memory<<20, disk<<20, 3)
	m.pods = append(m.pods, p)
	return p
}

func requests(name v1.ResourceName, amount string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(amount) }
}

func limits(name v1.ResourceName, amount string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Resources.Limits[name] = resource.MustParse(amount) }
}

func (m *machine) want(evicted ...string) {
	m.t.Helper()
	m.said.Lock()
	defer m.said.Unlock()
	if !slices.Equal(m.evicted, evicted) {
		m.t.Errorf("evicted\n%s\nwant\n%s", strings.Join(m.evicted, "\n"), strings.Join(evicted, "\n"))
	}
}

func (m *machine) wantEvent(want string) {
	m.t.Helper()
	var all []string
	for len(m.events.Events) > 0 {
		all = append(all, <-m.events.Events)
	}
	if !slices.Contains(all, want) {
		m.t.Errorf("no event %q among\n%s", want, strings.Join(all, "\n"))
	}
}

func TestNodeWithEnoughEvictsNothing(t *testing.T) {
	m := newMachine(t)
	m.pod("a", 1, 1, nil)
	m.watchNode(t.Context())
	m.want()
	if m.looks.Load() != 0 || len(m.Conditions()) != 0 {
		t.Errorf("%d changes, conditions %v", m.looks.Load(), m.Conditions())
	}
}

func TestWithoutMemoryThePodThatExceedsItsRequestGoes(t *testing.T) {
	m := newMachine(t)
	m.pod("modest", 300, 1, requests(v1.ResourceMemory, "400Mi"))
	m.pod("greedy", 200, 1, requests(v1.ResourceMemory, "100Mi"))
	m.pod("critical", 500, 1, func(p *v1.Pod) { p.Spec.Priority = ptr.To(int32(2000000000)) })
	m.free.Store(99)
	m.watchNode(t.Context())
	m.want("greedy Evicted true: The node was low on resource: memory. Threshold quantity: 100Mi, available: 99Mi. " +
		"Container c-greedy was using 200Mi, request is 100Mi, has larger consumption of memory. ")
	m.wantEvent("Warning EvictionThresholdMet Attempting to reclaim memory")
	if got := m.Conditions(); m.looks.Load() != 1 || !slices.Equal(got, []v1.NodeConditionType{v1.NodeMemoryPressure}) {
		t.Errorf("%d changes, conditions %v", m.looks.Load(), got)
	}
	m.watchNode(t.Context()) // the next one's turn comes, though this one is still ending
	if len(m.evicted) != 2 || !strings.HasPrefix(m.evicted[1], "modest ") {
		t.Error(m.evicted)
	}
	m.watchNode(t.Context())
	if len(m.evicted) != 2 {
		t.Error("a critical pod was evicted:", m.evicted)
	}
}

func TestAFullDiskLosesImagesFirst(t *testing.T) {
	m := newMachine(t)
	m.pod("a", 1, 7, nil)
	m.pod("b", 1, 9, func(p *v1.Pod) { p.Spec.Priority = ptr.To(int32(10)) })
	m.percent, m.images = 14, 1 // too little for images, enough for the node
	m.watchNode(t.Context())
	m.want()
	m.percent = 9
	m.watchNode(t.Context())
	m.want("a Evicted true: The node was low on resource: ephemeral-storage. Threshold quantity: 10Mi, available: 9Mi. " +
		"Container c-a was using 7Mi, request is 0, has larger consumption of ephemeral-storage. ")
	if got := m.Conditions(); !slices.Equal(got, []v1.NodeConditionType{v1.NodeDiskPressure}) {
		t.Errorf("conditions %v", got)
	}
}

func TestAConditionOutlivesItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		m.free.Store(10)
		go func() { defer close(done); m.Run(ctx) }()
		synctest.Wait()
		m.free.Store(900)
		time.Sleep(m.Policy.Transition - time.Second)
		synctest.Wait()
		if len(m.Conditions()) != 1 || m.looks.Load() != 1 {
			t.Errorf("%d changes, conditions %v", m.looks.Load(), m.Conditions())
		}
		time.Sleep(m.Policy.Every)
		synctest.Wait()
		if len(m.Conditions()) != 0 || m.looks.Load() != 2 {
			t.Errorf("%d changes, conditions %v", m.looks.Load(), m.Conditions())
		}
		cancel()
		<-done
	})
}

// Regression: one call to the runtime that hung ended all evictions, and the node's conditions
// stayed as they were.
func TestStatisticsThatHangDoNotEndEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.pod("a", 1, 1, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		m.free.Store(10)
		m.runtime.Block("ListContainerStats")
		go func() { defer close(done); m.Run(ctx) }()
		synctest.Wait()
		m.runtime.Block("ListContainerStats")() // for later calls only
		m.want()
		time.Sleep(statsTimeout + m.Policy.Every)
		synctest.Wait()
		m.want("a Evicted true: The node was low on resource: memory. Threshold quantity: 100Mi, available: 10Mi. Container c-a was using " +
			"1Mi, request is 0, has larger consumption of memory. ")
		cancel()
		<-done
	})
}

func TestUnreadableFiguresEvictNothing(t *testing.T) {
	m := newMachine(t)
	m.pod("a", 1, 1, nil)
	m.memory = func() (figure, error) { return figure{}, errors.New("no memory") }
	m.disk = func(string) (diskFigures, error) { return diskFigures{}, errors.New("no disk") }
	m.watchNode(t.Context())
	m.want()
	m.memory = func() (figure, error) { return figure{1, 1000}, nil }
	m.runtime.Fail("ListContainerStats", errors.New("broken"))
	m.watchNode(t.Context())
	m.want()
}

func TestLimitsOfLocalStorage(t *testing.T) {
	const mib = 1 << 20
	emptyDir := func(size string, medium v1.StorageMedium) func(*v1.Pod) {
		return func(p *v1.Pod) {
			e := &v1.EmptyDirVolumeSource{Medium: medium}
			if size != "" {
				e.SizeLimit = ptr.To(resource.MustParse(size))
			}
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: e}})
		}
	}
	storage := limits(v1.ResourceEphemeralStorage, "10Mi")
	for name, tc := range map[string]struct {
		edit   []func(*v1.Pod)
		volume uint64
		disk   uint64 // MiB of the writable layer
		apart  bool   // images are on a disk of their own
		want   string
	}{
		"no limit":        {edit: []func(*v1.Pod){emptyDir("", "")}, volume: 100 * mib, disk: 100},
		"within its size": {edit: []func(*v1.Pod){emptyDir("2Mi", "")}, volume: 2 * mib},
		"beyond its size": {
			edit: []func(*v1.Pod){emptyDir("2Mi", "")}, volume: 2*mib + 1,
			want: `a Evicted false: Usage of EmptyDir volume "v" exceeds the limit "2Mi". `,
		},
		"in memory":        {edit: []func(*v1.Pod){emptyDir("2Mi", v1.StorageMediumMemory)}, volume: 3 * mib},
		"within the limit": {edit: []func(*v1.Pod){storage, emptyDir("", "")}, volume: 3 * mib, disk: 7},
		"all together beyond": {
			edit: []func(*v1.Pod){storage, emptyDir("", "")}, volume: 4 * mib, disk: 7,
			want: "a Evicted false: Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ",
		},
		"one container beyond": {edit: []func(*v1.Pod){storage, func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, *p.Spec.Containers[0].DeepCopy())
			p.Spec.Containers[1].Name = "second"
		}}, disk: 11, want: `a Evicted false: Container c-a exceeded its local ephemeral storage limit "10Mi". `},
		"one container on another disk": {edit: []func(*v1.Pod){storage, func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, *p.Spec.Containers[0].DeepCopy())
			p.Spec.Containers[1].Name = "second"
		}}, disk: 11, apart: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			if tc.apart {
				m.disk = func(dir string) (diskFigures, error) { return diskFigures{device: uint64(len(dir))}, nil }
			}
			m.pod("a", 1, tc.disk, func(p *v1.Pod) {
				for _, edit := range tc.edit {
					edit(p)
				}
			})
			m.volumes["v"] = tc.volume
			m.enforceLimits(t.Context())
			if tc.want == "" {
				m.want()
			} else {
				m.want(tc.want)
				m.wantEvent("Warning Evicted " + strings.SplitN(tc.want, ": ", 2)[1])
			}
		})
	}
}

// What a pod writes to its hosts file and to its last words is its storage (CVE-2020-8557).
func TestFilesOfTheKubeletCount(t *testing.T) {
	for name, size := range map[string]int64{"within": 2 << 20, "beyond": 4 << 20} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			dir := t.TempDir()
			m.files = []string{filepath.Join(dir, "etc-hosts"), filepath.Join(dir, "containers")}
			word := filepath.Join(m.files[1], "c-a", "0123")
			if err := os.MkdirAll(filepath.Dir(word), 0o700); err != nil {
				t.Fatal(err)
			}
			for _, file := range []string{m.files[0], word} { // half in each
				if err := os.WriteFile(file, make([]byte, size/2), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m.pod("a", 1, 7, limits(v1.ResourceEphemeralStorage, "10Mi"))
			m.enforceLimits(t.Context())
			if name == "within" {
				m.want()
			} else {
				m.want("a Evicted false: Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ")
			}
		})
	}
}

func TestPodsWithoutLimitsAreNotLookedAt(t *testing.T) {
	m := newMachine(t)
	m.pod("a", 1, 1, func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	})
	m.Volumes = func(context.Context, *v1.Pod) []statsapi.VolumeStats { t.Error("its files were counted"); return nil }
	m.runtime.Fail("ListContainerStats", errors.New("asked"))
	m.enforceLimits(t.Context())
}

func TestRank(t *testing.T) {
	pods := map[string]struct {
		memory, request string
		priority        int32
	}{
		"exceeds much":            {"500Mi", "100Mi", 5},
		"exceeds little":          {"110Mi", "100Mi", 5},
		"exceeds, low priority":   {"101Mi", "100Mi", 1},
		"within, low priority":    {"1Mi", "100Mi", 0},
		"within, high priority":   {"99Mi", "100Mi", 9},
		"nothing is known of it ": {},
	}
	var all []*v1.Pod
	uses := map[types.UID]*usage{}
	for name, of := range pods {
		p := &v1.Pod{}
		p.UID, p.Spec.Priority = types.UID(name), &of.priority
		all = append(all, p)
		if of.memory == "" {
			continue
		}
		p.Spec.Containers = []v1.Container{
			{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse(of.request)}}},
		}
		q := resource.MustParse(of.memory)
		uses[p.UID] = &usage{memory: q.Value()}
	}
	rank(all, uses, signals[0], true)
	var got []string
	for _, p := range all {
		got = append(got, string(p.UID))
	}
	want := []string{
		"nothing is known of it ", "exceeds, low priority", "exceeds much", "exceeds little", "within, low priority",
		"within, high priority",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestAdmit(t *testing.T) {
	for name, tc := range map[string]struct {
		short []v1.NodeConditionType
		edit  func(*v1.Pod)
		want  string
	}{
		"a healthy node": {},
		"without memory": {
			short: []v1.NodeConditionType{v1.NodeMemoryPressure},
			want:  "The node had condition: [MemoryPressure]. ",
		},
		"without memory, it requested": {short: []v1.NodeConditionType{v1.NodeMemoryPressure}, edit: requests(v1.ResourceMemory, "1Mi")},
		"without memory, it tolerates": {short: []v1.NodeConditionType{v1.NodeMemoryPressure}, edit: func(p *v1.Pod) {
			p.Spec.Tolerations = []v1.Toleration{{Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists}}
		}},
		"without disk": {
			short: []v1.NodeConditionType{v1.NodeDiskPressure}, edit: requests(v1.ResourceMemory, "1Mi"),
			want: "The node had condition: [DiskPressure]. ",
		},
		"critical": {short: []v1.NodeConditionType{v1.NodeDiskPressure}, edit: func(p *v1.Pod) {
			p.Spec.Priority = ptr.To(int32(2000001000))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			p := m.pod("a", 1, 1, tc.edit)
			m.now = tc.short
			reason, message, ok := m.Admit(p)
			if ok != (tc.want == "") || message != tc.want || !ok && reason != "Evicted" {
				t.Errorf("%s: %s, %t", reason, message, ok)
			}
		})
	}
}

func TestTheMachinesFigures(t *testing.T) {
	f, err := readMemory()
	if err != nil || f.available <= 0 || f.available > f.capacity {
		t.Errorf("memory %+v, %v", f, err)
	}
	d, err := readDisk(t.TempDir())
	if err != nil || d.bytes.capacity <= 0 || d.bytes.available > d.bytes.capacity {
		t.Errorf("disk %+v, %v", d, err)
	}
	if _, err := readDisk("/no/such/place"); err == nil {
		t.Error("a disk that is not there has figures")
	}
}
