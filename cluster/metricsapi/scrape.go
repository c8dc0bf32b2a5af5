package metricsapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listersv1 "k8s.io/client-go/listers/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
)

// maxReading bounds what one node may tell: thousands of containers are some megabytes.
const maxReading = 16 << 20

// errRedirected is the error of a kubelet that says to ask elsewhere.
var errRedirected = errors.New("the kubelet redirects, which is not followed")

// Kubelets returns a Scrape that asks nodes' kubelets for /metrics/resource themselves, as the API
// server asks them for logs. The lister says where they are. No redirect is followed: the
// certificate for kubelets would be shown to a server that a node chooses (CVE-2018-1002102).
func Kubelets(nodes listersv1.NodeLister, config kubeletclient.KubeletClientConfig) (Scrape, error) {
	get := kubeletclient.NodeGetterFunc(func(_ context.Context, name string, _ metav1.GetOptions) (*v1.Node, error) { return nodes.Get(name) })
	where, err := kubeletclient.NewNodeConnectionInfoGetter(get, config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, node string) (*Reading, error) {
		to, err := where.GetConnectionInfo(ctx, types.NodeName(node))
		if err != nil {
			return nil, err
		}
		target := url.URL{Scheme: to.Scheme, Host: net.JoinHostPort(to.Hostname, to.Port), Path: "/metrics/resource"}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
		if err != nil {
			return nil, err
		}
		answer, err := (&http.Client{
			Transport:     to.Transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}).Do(request)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		if answer.StatusCode >= 300 && answer.StatusCode < 400 {
			return nil, fmt.Errorf("%s: %w", answer.Status, errRedirected)
		}
		if answer.StatusCode != http.StatusOK {
			why, _ := io.ReadAll(io.LimitReader(answer.Body, 512))
			return nil, fmt.Errorf("%s: %s", answer.Status, bytes.TrimSpace(why))
		}
		return Parse(io.LimitReader(answer.Body, maxReading), time.Now())
	}, nil
}

// Proxy returns a Scrape that asks a node's kubelet for /metrics/resource through the API server,
// in the name of kube's identity, for those who cannot reach the nodes. The API server refuses that
// for nodes whose address is a loopback one.
func Proxy(kube kubernetes.Interface) Scrape {
	return func(ctx context.Context, node string) (*Reading, error) {
		body, err := kube.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").
			Suffix("metrics/resource").SetHeader("Accept", "text/plain").Stream(ctx)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		return Parse(io.LimitReader(body, maxReading), time.Now())
	}
}

// Local returns a Scrape that asks the kubelet of this process for its own node, and others as
// elsewhere says.
func Local(name string, usage func(context.Context) (*statsapi.Summary, error), elsewhere Scrape) Scrape {
	return func(ctx context.Context, node string) (*Reading, error) {
		if node != name {
			return elsewhere(ctx, node)
		}
		summary, err := usage(ctx)
		if err != nil {
			return nil, err
		}
		return summarized(summary)
	}
}

// errNoFigures is what a node is worth that does not tell what it uses.
var errNoFigures = errors.New("the kubelet tells no usage of its node")

func summarized(s *statsapi.Summary) (*Reading, error) {
	r := &Reading{Containers: map[Container]Usage{}}
	var ok bool
	if r.Node, ok = usageOf(s.Node.CPU, s.Node.Memory, s.Node.StartTime.Time); !ok {
		return nil, errNoFigures
	}
	for _, p := range s.Pods {
		for _, c := range p.Containers {
			if u, ok := usageOf(c.CPU, c.Memory, c.StartTime.Time); ok {
				r.Containers[Container{p.PodRef.Namespace, p.PodRef.Name, c.Name}] = u
			}
		}
	}
	return r, nil
}

func usageOf(cpu *statsapi.CPUStats, memory *statsapi.MemoryStats, started time.Time) (Usage, bool) {
	if cpu == nil || cpu.UsageCoreNanoSeconds == nil || memory == nil || memory.WorkingSetBytes == nil {
		return Usage{}, false
	}
	return Usage{At: cpu.Time.Time, CPU: time.Duration(*cpu.UsageCoreNanoSeconds), Memory: int64(*memory.WorkingSetBytes), Started: started},
		true
}

// Parse reads what a kubelet answers to /metrics/resource. Samples without a time are of now.
func Parse(text io.Reader, now time.Time) (*Reading, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return nil, fmt.Errorf("/metrics/resource: %w", err)
	}
	nodes := map[Container]*parts{}
	containers := map[Container]*parts{}
	for name, take := range map[string]func(*parts, *dto.Metric){
		"cpu_usage_seconds_total":  func(p *parts, m *dto.Metric) { p.cpu(value(m), sampled(m, now)) },
		"memory_working_set_bytes": func(p *parts, m *dto.Metric) { p.memory(value(m)) },
		"start_time_seconds":       func(p *parts, m *dto.Metric) { p.started(value(m)) },
	} {
		for prefix, all := range map[string]map[Container]*parts{"node_": nodes, "container_": containers} {
			for _, m := range families[prefix+name].GetMetric() {
				of := named(m)
				if all[of] == nil {
					all[of] = &parts{}
				}
				take(all[of], m)
			}
		}
	}
	node := nodes[Container{}]
	if node == nil || !node.whole() {
		return nil, errNoFigures
	}
	r := &Reading{Node: node.usage, Containers: map[Container]Usage{}}
	for name, p := range containers {
		if p.whole() {
			r.Containers[name] = p.usage
		}
	}
	return r, nil
}

// parts is a usage that is being put together.
type parts struct {
	usage             Usage
	hasCPU, hasMemory bool
}

func (p *parts) whole() bool { return p.hasCPU && p.hasMemory }

func (p *parts) cpu(seconds float64, at time.Time) {
	if seconds >= 0 && seconds < math.MaxInt64/1e9 {
		p.usage.CPU, p.usage.At, p.hasCPU = time.Duration(seconds*1e9), at, true
	}
}

func (p *parts) memory(bytes float64) {
	if bytes >= 0 && bytes < math.MaxInt64 {
		p.usage.Memory, p.hasMemory = int64(bytes), true
	}
}

func (p *parts) started(seconds float64) {
	if seconds > 0 && seconds < math.MaxInt64/1e9 {
		p.usage.Started = time.Unix(0, int64(seconds*1e9))
	}
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	}
	return m.GetUntyped().GetValue()
}

func sampled(m *dto.Metric, now time.Time) time.Time {
	if m.TimestampMs == nil {
		return now
	}
	return time.UnixMilli(*m.TimestampMs)
}

func named(m *dto.Metric) Container {
	var c Container
	for _, l := range m.Label {
		switch l.GetName() {
		case "namespace":
			c.Namespace = l.GetValue()
		case "pod":
			c.Pod = l.GetValue()
		case "container":
			c.Name = l.GetValue()
		}
	}
	return c
}
