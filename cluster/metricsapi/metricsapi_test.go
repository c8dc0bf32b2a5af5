package metricsapi

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/endpoints/request"
	listersv1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/utils/ptr"
)

// cluster has the node n1, on which the container c of the pod ns/p uses a quarter of a core.
type cluster struct {
	*Sampler
	scrapes int
	fail    error
	start   time.Time
	// restarted, if set, is when the container began again.
	restarted time.Time
}

func newCluster(t *testing.T, objects ...metav1.Object) *cluster {
	t.Helper()
	nodes, pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil),
		cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	objects = append(objects,
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}},
		&v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{"app": "web"}},
			Spec:       v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{Name: "c"}}},
		})
	for _, o := range objects {
		var err error
		switch o := o.(type) {
		case *v1.Node:
			err = nodes.Add(o)
		case *v1.Pod:
			err = pods.Add(o)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c := &cluster{start: time.Now().Add(-time.Hour)}
	c.Sampler = NewSampler(c.read, listersv1.NewNodeLister(nodes), listersv1.NewPodLister(pods), slog.New(slog.DiscardHandler))
	return c
}

func (c *cluster) read(_ context.Context, node string) (*Reading, error) {
	if node != "n1" {
		return nil, errors.New("not there")
	}
	if c.fail != nil {
		return nil, c.fail
	}
	c.scrapes++
	now, began := time.Now(), c.start
	if !c.restarted.IsZero() {
		began = c.restarted
	}
	return &Reading{
		Node:       Usage{At: now, CPU: now.Sub(c.start) / 2, Memory: 1 << 30, Started: c.start},
		Containers: map[Container]Usage{{"ns", "p", "c"}: {At: now, CPU: now.Sub(began) / 4, Memory: 1 << 20, Started: began}},
	}, nil
}

func TestSampler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		check := func(when string, scrapes int, window time.Duration) {
			t.Helper()
			nodes, err := c.NodeMetrics(t.Context())
			if err != nil || len(nodes) != 1 || nodes[0].Name != "n1" || nodes[0].Labels["zone"] != "a" || nodes[0].Usage.Cpu().String() != "500m" ||
				nodes[0].Usage.Memory().String() != "1Gi" {
				t.Errorf("%s: %v %v", when, nodes, err)
			}
			pods, err := c.PodMetrics(t.Context())
			if err != nil || len(pods) != 1 || pods[0].Labels["app"] != "web" || pods[0].Containers[0].Usage.Cpu().String() != "250m" ||
				pods[0].Containers[0].Usage.Memory().String() != "1Mi" || pods[0].Window.Duration != window {
				t.Errorf("%s: %v %v", when, pods, err)
			}
			if c.scrapes != scrapes {
				t.Errorf("%s: %d scrapes, want %d", when, c.scrapes, scrapes)
			}
		}
		check("at first", 2, time.Second)
		time.Sleep(10 * time.Second)
		check("soon after", 2, time.Second)
		time.Sleep(20 * time.Second)
		check("later", 3, 30*time.Second)
		time.Sleep(time.Hour)
		check("long after", 5, time.Second)
		time.Sleep(20 * time.Second)
		c.restarted = time.Now().Add(-8 * time.Second)
		check("after a restart", 6, 8*time.Second)
	})
}

func TestSamplerFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "away"}})
		if nodes, err := c.NodeMetrics(t.Context()); err != nil || len(nodes) != 1 {
			t.Error("one node's failure is another's:", nodes, err)
		}
		time.Sleep(time.Minute)
		c.fail = errors.New("broken")
		if _, err := c.PodMetrics(t.Context()); err == nil || !strings.Contains(err.Error(), "node n1: broken") {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		c.fail = nil
		time.Sleep(time.Hour)
		time.AfterFunc(time.Millisecond, cancel)
		if _, err := c.PodMetrics(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestBetween(t *testing.T) {
	t0 := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		before *Usage
		now    Usage
		want   string
	}{
		"usual":                {&Usage{At: t0, CPU: time.Second}, Usage{At: t0.Add(10 * time.Second), CPU: 3 * time.Second}, "200m"},
		"idle":                 {&Usage{At: t0, CPU: time.Second}, Usage{At: t0.Add(10 * time.Second), CPU: time.Second}, "0"},
		"new":                  {nil, Usage{At: t0.Add(10 * time.Second), CPU: 5 * time.Second, Started: t0}, "500m"},
		"new, start not known": {nil, Usage{At: t0, CPU: 1}, ""},
		"restarted": {
			&Usage{At: t0, CPU: time.Minute},
			Usage{At: t0.Add(10 * time.Second), CPU: time.Second, Started: t0.Add(5 * time.Second)},
			"200m",
		},
		"counter went back": {
			&Usage{At: t0, CPU: time.Minute},
			Usage{At: t0.Add(10 * time.Second), CPU: time.Second, Started: t0.Add(-time.Hour)},
			"",
		},
		"same time twice": {&Usage{At: t0, CPU: time.Second}, Usage{At: t0, CPU: time.Second}, ""},
		"clock went back": {&Usage{At: t0, CPU: time.Second}, Usage{At: t0.Add(-1), CPU: 2 * time.Second}, ""},
	} {
		r, ok := between(c.before, c.now)
		if ok != (c.want != "") || ok && r.usage.Cpu().String() != c.want {
			t.Errorf("%s: %v %v, want %s", name, r.usage, ok, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	const text = `# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"} 2.5 5000
container_cpu_usage_seconds_total{container="half",namespace="ns",pod="p"} 2.5 5000
container_cpu_usage_seconds_total{container="odd",namespace="ns",pod="p"} NaN 5000
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="c",namespace="ns",pod="p"} 4096 5000
container_memory_working_set_bytes{container="odd",namespace="ns",pod="p"} -1 5000
container_start_time_seconds{container="c",namespace="ns",pod="p"} 1.5
node_cpu_usage_seconds_total 10
node_memory_working_set_bytes 8192
`
	now := time.Unix(77, 0)
	r, err := Parse(strings.NewReader(text), now)
	if err != nil {
		t.Fatal(err)
	}
	if r.Node != (Usage{At: now, CPU: 10 * time.Second, Memory: 8192}) {
		t.Error(r.Node)
	}
	got, ok := r.Containers[Container{"ns", "p", "c"}]
	if !ok || len(r.Containers) != 1 || !got.At.Equal(time.UnixMilli(5000)) || got.CPU != 2500*time.Millisecond || got.Memory != 4096 ||
		!got.Started.Equal(time.UnixMilli(1500)) {
		t.Error(r.Containers)
	}
	for _, bad := range []string{"", "{{{", "node_cpu_usage_seconds_total 1\n"} {
		if _, err := Parse(strings.NewReader(bad), now); err == nil {
			t.Errorf("%q is taken for figures", bad)
		}
	}
}

func TestLocal(t *testing.T) {
	at := metav1.NewTime(time.Unix(9, 0))
	scrape := Local("n1", func(context.Context) (*statsapi.Summary, error) {
		return &statsapi.Summary{
			Node: statsapi.NodeStats{
				CPU:    &statsapi.CPUStats{Time: at, UsageCoreNanoSeconds: ptr.To[uint64](5)},
				Memory: &statsapi.MemoryStats{WorkingSetBytes: ptr.To[uint64](6)},
			},
			Pods: []statsapi.PodStats{{PodRef: statsapi.PodReference{Namespace: "ns", Name: "p"}, Containers: []statsapi.ContainerStats{
				{
					Name: "c", CPU: &statsapi.CPUStats{Time: at, UsageCoreNanoSeconds: ptr.To[uint64](7)},
					Memory: &statsapi.MemoryStats{WorkingSetBytes: ptr.To[uint64](8)},
				}, {Name: "none"},
			}}},
		}, nil
	}, func(context.Context, string) (*Reading, error) { return nil, errors.New("elsewhere") })
	if r, err := scrape(t.Context(), "n1"); err != nil || r.Node.CPU != 5 || len(r.Containers) != 1 ||
		r.Containers[Container{"ns", "p", "c"}].Memory != 8 {
		t.Error(r, err)
	}
	if _, err := scrape(t.Context(), "n2"); err == nil || err.Error() != "elsewhere" {
		t.Error(err)
	}
}

func TestKubelets(t *testing.T) {
	refuse := make(chan bool, 1)
	scrape := asking(t, httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics/resource" || <-refuse {
			http.Error(w, "Forbidden", http.StatusForbidden)
			return
		}
		io.WriteString(w, figures)
	})))
	refuse <- false
	if r, err := scrape(t.Context(), "n1"); err != nil || r.Node.CPU != 10*time.Second {
		t.Error(r, err)
	}
	refuse <- true
	if _, err := scrape(t.Context(), "n1"); err == nil || err.Error() != "403 Forbidden: Forbidden" {
		t.Error(err)
	}
	if _, err := scrape(t.Context(), "none"); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// Attack: a hostile node redirects the request of the API server to another server, which would see
// the certificate for kubelets, and whose answer would count as the node's (CVE-2018-1002102).
func TestAKubeletThatRedirects(t *testing.T) {
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		asked := false
		scrape := asking(t, httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics/resource" {
				http.Redirect(w, r, "/elsewhere", status)
				return
			}
			asked = true
			io.WriteString(w, figures)
		})))
		if r, err := scrape(t.Context(), "n1"); !errors.Is(err, errRedirected) || asked {
			t.Errorf("%d: %v %v, followed: %v", status, r, err, asked)
		}
	}
}

// Attack: a node tells figures of another node's pod, for example to have it scaled.
func TestANodeThatTellsOfOtherNodesPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		victim := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "victim"},
			Spec:       v1.PodSpec{NodeName: "n2", Containers: []v1.Container{{Name: "c"}}},
		}
		c := newCluster(t, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3"}}, victim)
		c.scrape = func(_ context.Context, node string) (*Reading, error) {
			now := time.Now()
			told := func(memory int64) Usage {
				return Usage{At: now, CPU: now.Sub(c.start) / 4, Memory: memory, Started: c.start}
			}
			r := &Reading{Node: told(1 << 30), Containers: map[Container]Usage{}}
			switch node {
			case "n1":
				r.Containers[Container{"ns", "p", "c"}] = told(1 << 20)
			case "n2":
				r.Containers[Container{"ns", "victim", "c"}] = told(2 << 20)
			case "n3":
				r.Containers[Container{"ns", "victim", "c"}] = told(1 << 40)
				r.Containers[Container{"ns", "p", "c"}] = Usage{At: now} // that of a rate that is not known hides the pod
			}
			return r, nil
		}
		pods, err := c.PodMetrics(t.Context())
		if err != nil || len(pods) != 2 {
			t.Fatal(pods, err)
		}
		want := map[string]string{"p": "1Mi", "victim": "2Mi"}
		for _, p := range pods {
			if len(p.Containers) != 1 || p.Containers[0].Usage.Memory().String() != want[p.Name] {
				t.Errorf("%s: %v", p.Name, p.Containers)
			}
		}
	})
}

const figures = "node_cpu_usage_seconds_total 10 5000\nnode_memory_working_set_bytes 8192 5000\n"

// asking returns what asks the kubelet of the node n1, which the test closes.
func asking(t *testing.T, kubelet *httptest.Server) Scrape {
	t.Helper()
	t.Cleanup(kubelet.Close)
	at, err := url.Parse(kubelet.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	if err := nodes.Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1.NodeStatus{
		Addresses:       []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: at.Hostname()}},
		DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: int32(port)}},
	}}); err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: kubelet.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	scrape, err := Kubelets(listersv1.NewNodeLister(nodes), kubeletclient.KubeletClientConfig{
		PreferredAddressTypes: []string{string(v1.NodeInternalIP)}, TLSClientConfig: kubeletclient.KubeletTLSConfig{CAFile: ca},
	})
	if err != nil {
		t.Fatal(err)
	}
	return scrape
}

// fixed is a Source that never changes.
type fixed struct{ err error }

func (f fixed) NodeMetrics(context.Context) ([]metrics.NodeMetrics, error) {
	return []metrics.NodeMetrics{
		{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Usage: usage(0.5, 1<<20), Window: lasting(time.Second)},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}, Usage: usage(0.123456789, 1000),
			Window: lasting(time.Second),
		},
	}, f.err
}

func (f fixed) PodMetrics(context.Context) ([]metrics.PodMetrics, error) {
	return []metrics.PodMetrics{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "p"}},
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", Labels: map[string]string{"app": "web"}}, Window: lasting(2 * time.Second),
			Containers: []metrics.ContainerMetrics{
				{Name: "x", Usage: usage(0.25, 1<<20)}, {Name: "y", Usage: usage(0.5, 2<<20)},
			},
		},
	}, f.err
}

func TestStorage(t *testing.T) {
	nodes, pods := &nodeStorage{fixed{}}, &podStorage{fixed{}}
	in := func(namespace string) context.Context { return request.WithNamespace(t.Context(), namespace) }
	list, err := nodes.List(t.Context(), &internalversion.ListOptions{})
	if l := list.(*metrics.NodeMetricsList).Items; err != nil || len(l) != 2 || l[0].Name != "n1" {
		t.Error(list, err)
	}
	table, err := nodes.ConvertToTable(t.Context(), list, nil)
	if err != nil || len(table.Rows) != 2 || table.ColumnDefinitions[1].Name != "cpu" || table.Rows[0].Cells[1] != "123456789n" ||
		table.Rows[0].Cells[2] != "1k" && table.Rows[0].Cells[2] != "1000" || table.Rows[1].Cells[3] != "1s" {
		t.Error(table, err)
	}
	list, _ = nodes.List(t.Context(), &internalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"zone": "a"})})
	if l := list.(*metrics.NodeMetricsList).Items; len(l) != 1 || l[0].Name != "n1" {
		t.Error(list)
	}
	if _, err := nodes.Get(t.Context(), "none", nil); !apierrors.IsNotFound(err) ||
		err.Error() != `nodemetrics.metrics.k8s.io "none" not found` {
		t.Error(err)
	}
	if o, err := nodes.Get(t.Context(), "n2", nil); err != nil || o.(*metrics.NodeMetrics).Name != "n2" {
		t.Error(o, err)
	}
	list, _ = pods.List(in(""), nil)
	if l := list.(*metrics.PodMetricsList).Items; len(l) != 2 || l[0].Namespace != "a" {
		t.Error(list)
	}
	list, _ = pods.List(in("a"), &internalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"app": "web"})})
	table, err = pods.ConvertToTable(t.Context(), list, nil)
	if err != nil || len(table.Rows) != 1 || table.Rows[0].Cells[1] != "750m" || table.Rows[0].Cells[2] != "3Mi" ||
		table.Rows[0].Cells[3] != "2s" {
		t.Error(table, err)
	}
	if _, err := pods.Get(in("c"), "p", nil); !apierrors.IsNotFound(err) || err.Error() != `podmetrics.metrics.k8s.io "c/p" not found` {
		t.Error(err)
	}
	if _, err := (&podStorage{fixed{errors.New("x")}}).List(in("a"), nil); !apierrors.IsServiceUnavailable(err) {
		t.Error(err)
	}
}
