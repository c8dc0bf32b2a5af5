package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	listersv1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/eviction"
	"github.com/coracle-project/coracle/cluster/kubelet/logrotate"
	"github.com/coracle-project/coracle/cluster/kubelet/sysctls"
)

func TestAdmit(t *testing.T) {
	node := func() *v1.Node {
		n := &v1.Node{}
		n.Name = "n1"
		n.Labels = map[string]string{v1.LabelOSStable: "linux", "disk": "ssd"}
		n.Status.Allocatable = v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi"), v1.ResourcePods: resource.MustParse("3"),
		}
		return n
	}
	other := &v1.Pod{}
	other.Spec.Containers = []v1.Container{{
		Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m")}},
		Ports:     []v1.ContainerPort{{HostPort: 80, HostIP: "10.0.0.1"}},
	}}
	asks := func(name v1.ResourceName, amount string) func(*v1.Pod, *v1.Node) {
		return func(p *v1.Pod, _ *v1.Node) {
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{name: resource.MustParse(amount)}
		}
	}
	wants := func(port v1.ContainerPort) func(*v1.Pod, *v1.Node) {
		return func(p *v1.Pod, _ *v1.Node) { p.Spec.Containers[0].Ports = []v1.ContainerPort{port} }
	}
	for name, tc := range map[string]struct {
		edit            func(*v1.Pod, *v1.Node)
		reason, message string
	}{
		"fits": {edit: asks(v1.ResourceCPU, "500m")},
		"not enough CPU": {
			asks(v1.ResourceCPU, "501m"), "OutOfcpu",
			"Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000",
		},
		"not enough memory": {
			asks(v1.ResourceMemory, "2Gi"), "OutOfmemory",
			"Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824",
		},
		"no such resource": {edit: asks("example.com/thing", "1")},
		"too few of it": {func(p *v1.Pod, n *v1.Node) {
			asks("example.com/thing", "2")(p, n)
			n.Status.Allocatable["example.com/thing"] = resource.MustParse("1")
		}, "OutOfexample.com/thing", "Node didn't have enough resource: example.com/thing, requested: 2, used: 0, capacity: 1"},
		"too many pods": {func(_ *v1.Pod, n *v1.Node) {
			n.Status.Allocatable[v1.ResourcePods] = resource.MustParse("1")
		}, "OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1"},
		"selector matches": {edit: func(p *v1.Pod, _ *v1.Node) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }},
		"selector does not": {func(p *v1.Pod, _ *v1.Node) {
			p.Spec.NodeSelector = map[string]string{"disk": "hdd"}
		}, "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		"another OS": {func(p *v1.Pod, _ *v1.Node) {
			p.Spec.OS = &v1.PodOS{Name: v1.Windows}
		}, "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"},
		"another OS's node": {func(p *v1.Pod, _ *v1.Node) {
			p.Spec.NodeSelector = map[string]string{v1.LabelOSStable: "windows"}
		}, "PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"},
		"port of any": {
			wants(v1.ContainerPort{HostPort: 80}), "NodePorts",
			"Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
		},
		"port of another IP": {edit: wants(v1.ContainerPort{HostPort: 80, HostIP: "10.0.0.2"})},
		"port of UDP":        {edit: wants(v1.ContainerPort{HostPort: 80, Protocol: v1.ProtocolUDP})},
		"a taint": {func(_ *v1.Pod, n *v1.Node) {
			n.Spec.Taints = []v1.Taint{{Key: "out", Effect: v1.TaintEffectNoExecute}}
		}, "TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"},
		"a tolerated taint": {edit: func(p *v1.Pod, n *v1.Node) {
			n.Spec.Taints = []v1.Taint{{Key: "out", Effect: v1.TaintEffectNoExecute}}
			p.Spec.Tolerations = []v1.Toleration{{Key: "out", Operator: v1.TolerationOpExists}}
		}},
		"a taint against scheduling": {edit: func(_ *v1.Pod, n *v1.Node) {
			n.Spec.Taints = []v1.Taint{{Key: "out", Effect: v1.TaintEffectNoSchedule}}
		}},
		"strict groups": {func(p *v1.Pod, _ *v1.Node) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyStrict)}
		}, "SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node"},
	} {
		t.Run(name, func(t *testing.T) {
			p, n := &v1.Pod{}, node()
			p.Spec.Containers = []v1.Container{{}}
			tc.edit(p, n)
			reason, message, ok := admit(n, p, []*v1.Pod{other})
			if reason != tc.reason || message != tc.message || ok != (tc.reason == "") {
				t.Errorf("%v %q %q", ok, reason, message)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	good := Options{NodeName: "n", Endpoint: "unix:///x"}
	if err := good.complete(); err != nil || good.MaxPods != 110 || good.Port != 10250 || good.LegacyLogDir != "/var/log/containers" ||
		good.PodPIDs != 4096 || good.Logs.MaxSize != 10<<20 || good.Logs.MaxFiles != 5 {
		t.Errorf("%+v, %v", good, err)
	}
	for name, o := range map[string]Options{
		"no name":     {Endpoint: "unix:///x"},
		"no endpoint": {NodeName: "n"},
		"bad address": {NodeName: "n", Endpoint: "unix:///x", NodeIPs: []string{"here"}},
		"half a pair": {NodeName: "n", Endpoint: "unix:///x", CertFile: "c"},
		"one log":     {NodeName: "n", Endpoint: "unix:///x", Logs: logrotate.Policy{MaxFiles: 1}},
	} {
		if o.complete() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Directories with what containers wrote are closed again when the kubelet starts.
func TestDirectoriesAreClosed(t *testing.T) {
	dir := t.TempDir()
	o := Options{RootDir: filepath.Join(dir, "kubelet"), LogDir: filepath.Join(dir, "logs")}
	pods := filepath.Join(o.RootDir, "pods")
	if err := os.MkdirAll(pods, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := o.makeDirs(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{o.RootDir: 0o700, pods: 0o700, o.LogDir: 0o755} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
}

type noAppArmor struct{ err error }

func (n noAppArmor) Validate(*v1.Pod) error { return n.err }
func (n noAppArmor) ValidateHost() error    { return n.err }

func TestConfined(t *testing.T) {
	safe, err := sysctls.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	asks := &v1.Pod{}
	asks.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "kernel.msgmax", Value: "1"}}}
	wants := func(port int32) *v1.Pod {
		p := &v1.Pod{}
		p.Spec.Containers = []v1.Container{{Ports: []v1.ContainerPort{{HostPort: port}}}}
		return p
	}
	k := &Kubelet{opts: Options{Port: 10250, ReservedPorts: map[int]string{6443: "the API server"}}}
	for name, tc := range map[string]struct {
		pod             *v1.Pod
		apparmor        error
		reason, message string
	}{
		"plain":         {pod: &v1.Pod{}},
		"unsafe sysctl": {asks, nil, "SysctlForbidden", `forbidden sysctl: "kernel.msgmax" not allowlisted`},
		"a reserved port": {
			wants(6443), nil, "HostPortReserved",
			"host port 6443/TCP belongs to the API server on this node; choose another hostPort",
		},
		"without a guard": {
			&v1.Pod{}, errors.New("AppArmor is not enabled on the host"), "AppArmor",
			"Cannot enforce AppArmor: AppArmor is not enabled on the host",
		},
	} {
		a := &admission{k: k, sysctls: safe, apparmor: noAppArmor{tc.apparmor}}
		if reason, message, ok := a.confined(tc.pod); reason != tc.reason || message != tc.message || ok != (tc.reason == "") {
			t.Errorf("%s: %v %q %q", name, ok, reason, message)
		}
	}
}

// onNode is a kubelet of a node that has these resources.
func onNode(t *testing.T, allocatable v1.ResourceList) *Kubelet {
	t.Helper()
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	n := &v1.Node{}
	n.Name, n.Status.Allocatable = "n", allocatable
	if err := nodes.Add(n); err != nil {
		t.Fatal(err)
	}
	return &Kubelet{evictor: &eviction.Manager{}, watched: watched{name: "n", nodes: listersv1.NewNodeLister(nodes)}}
}

// Regression: a pod that had a port since before it was reserved could not be resized.
func TestAReservedPortKeepsNoPodFromItsResize(t *testing.T) {
	k := onNode(t, v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourcePods: resource.MustParse("1")})
	k.opts = Options{Port: 10250, ReservedPorts: map[int]string{6443: "the API server"}}
	p := &v1.Pod{}
	p.UID = "u"
	p.Spec.Containers = []v1.Container{{Ports: []v1.ContainerPort{{HostPort: 6443}}}}
	for cpu, want := range map[string]bool{"500m": true, "2": false} { // the other checks stay
		a := newAdmission(k)
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
		accepted := false
		if message, ok := a.resize(p, func() { accepted = true }); ok != want || accepted != want {
			t.Errorf("to %s CPU: %v, accepted %v: %s", cpu, ok, accepted, message)
		}
	}
}

// Room that comes free is given to deferred resizes in upstream's order, whichever worker asks
// first.
func TestDeferredResizesAreGrantedInOrder(t *testing.T) {
	a := newAdmission(onNode(t, v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("10"), v1.ResourceMemory: resource.MustParse("1Gi"), v1.ResourcePods: resource.MustParse("99"),
	}))
	given, woken := map[types.UID]*v1.Pod{}, []types.UID{}
	a.given = func(uid types.UID) (*v1.Pod, bool) { p, ok := given[uid]; return p, ok }
	a.wake = func(uid types.UID) { woken = append(woken, uid) }
	sized := func(uid, cpu string, priority int32, guaranteed bool) *v1.Pod {
		p := &v1.Pod{}
		p.UID, p.Spec.Priority = types.UID(uid), &priority
		amounts := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("0")}
		if guaranteed {
			amounts[v1.ResourceMemory] = resource.MustParse("1")
		}
		c := v1.Container{Name: "c", Resources: v1.ResourceRequirements{Requests: amounts}}
		if guaranteed {
			c.Resources.Limits = amounts
		}
		p.Spec.Containers = []v1.Container{c}
		return p
	}
	runs := func(p *v1.Pod) { given[p.UID], a.pods[p.UID] = p, p }
	asks := func(p *v1.Pod) bool {
		_, ok := a.resize(p, func() { given[p.UID] = p })
		return ok
	}
	runs(sized("large", "7", 0, false))
	wanted := []*v1.Pod{
		sized("old", "4", 0, false), sized("new", "4", 0, false), sized("guaranteed", "4", 0, true), sized("important", "4", 5, false),
	}
	for _, p := range wanted {
		runs(sized(string(p.UID), "500m", *p.Spec.Priority, p.UID == "guaranteed"))
	}
	for _, p := range wanted {
		if asks(p) {
			t.Fatalf("%s fits", p.UID)
		}
	}
	delete(given, "large")
	a.mu.Lock()
	a.goneLocked(sized("large", "7", 0, false)) // 8 of 10 are left, of which each needs 3.5 more
	a.mu.Unlock()
	if want := []types.UID{"important", "guaranteed", "old", "new"}; !slices.Equal(woken, want) {
		t.Errorf("woken %v, want %v", woken, want)
	}
	for i, want := range []bool{false, false, true, true} {
		if got := asks(wanted[i]); got != want {
			t.Errorf("%s: resized %t, want %t", wanted[i].UID, got, want)
		}
	}
	// What was granted and is not wanted any more is free for the next.
	delete(given, "important")
	a.mu.Lock()
	a.goneLocked(wanted[3])
	if !a.deferred["old"].granted || a.deferred["new"].granted {
		t.Error("the one that has waited longest is not the next")
	}
	a.changedLocked(sized("old", "500m", 0, false))
	if a.deferred["old"] != nil || !a.deferred["new"].granted {
		t.Error("the room of a resize that was taken back is not given to the next")
	}
	a.mu.Unlock()
	if !asks(wanted[1]) || len(a.deferred) != 0 {
		t.Errorf("the last one is not resized; deferred %v", a.deferred)
	}
}
