// Package cadvisor says what pods and containers use in the metrics that cAdvisor made
// known, as ListPodSandboxMetrics gives them to the kubelet (KEP 2371). It is pure data:
// what it needs to know has been read already.
//
// CRI's metrics are whole numbers, so seconds lose their fraction.
package cadvisor

import (
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/pod"
)

// Pod is a pod with its reading.
type Pod struct {
	Pod   pod.Pod
	Stats pod.PodStats
	// Containers are those that have a reading in Stats.
	Containers []Container
}

// Container is a running container with its reading.
type Container struct {
	Container pod.Container
	Image     string // as people know it
	Stats     pod.ContainerStats
	Processes cgstat.Processes
	FS        FS
}

// FS is the file system that writable layers are on.
type FS struct {
	Device                    string
	Bytes, Inodes, InodesFree uint64
}

// labels are what every metric has, in this order, as the kubelet's own cAdvisor has them.
var labels = []string{"container", "id", "image", "name", "namespace", "pod"}

// point is one value; labels are those that its family has besides the common ones.
type point struct {
	labels []string
	value  uint64
}

// family is one metric: of says what a subject has of it.
type family[T any] struct {
	name, help string
	kind       runtimeapi.MetricType
	labels     []string
	of         func(T) []point
}

const (
	counter = runtimeapi.MetricType_COUNTER
	gauge   = runtimeapi.MetricType_GAUGE
)

// Descriptors describe all metrics; they never change.
func Descriptors() []*runtimeapi.MetricDescriptor {
	var out []*runtimeapi.MetricDescriptor
	out = describe(out, ofCgroups)
	out = describe(out, ofContainers)
	return describe(out, ofNetworks)
}

func describe[T any](out []*runtimeapi.MetricDescriptor, families []family[T]) []*runtimeapi.MetricDescriptor {
	for _, f := range families {
		keys := append(append([]string{}, labels...), f.labels...)
		out = append(out, &runtimeapi.MetricDescriptor{Name: f.name, Help: f.help, LabelKeys: keys})
	}
	return out
}

// Metrics are a pod's metrics with its containers'.
func Metrics(p *Pod) *runtimeapi.PodSandboxMetrics {
	c := &p.Pod.Config
	values := []string{"", p.Pod.ID, "", "", c.Namespace, c.Name}
	out := &runtimeapi.PodSandboxMetrics{PodSandboxId: p.Pod.ID}
	out.Metrics = measure(out.Metrics, ofCgroups, &p.Stats.Usage, values, p.Stats.Usage.Time)
	out.Metrics = measure(out.Metrics, ofNetworks, &p.Stats, values, p.Stats.NetworkTime)
	for i := range p.Containers {
		one := &p.Containers[i]
		values := []string{one.Container.Config.Name, one.Container.ID, one.Image, one.Container.ID, c.Namespace, c.Name}
		m := &runtimeapi.ContainerMetrics{ContainerId: one.Container.ID}
		m.Metrics = measure(m.Metrics, ofCgroups, &one.Stats.Usage, values, one.Stats.Usage.Time)
		m.Metrics = measure(m.Metrics, ofContainers, one, values, one.Stats.Usage.Time)
		out.ContainerMetrics = append(out.ContainerMetrics, m)
	}
	return out
}

func measure[T any](out []*runtimeapi.Metric, families []family[T], subject T, values []string, at time.Time) []*runtimeapi.Metric {
	for _, f := range families {
		for _, p := range f.of(subject) {
			out = append(out, &runtimeapi.Metric{
				Name: f.name, MetricType: f.kind, Timestamp: at.UnixNano(),
				LabelValues: append(append([]string{}, values...), p.labels...),
				Value:       &runtimeapi.UInt64Value{Value: p.value},
			})
		}
	}
	return out
}

func one(n uint64) []point { return []point{{value: n}} }

// seconds is a duration as these metrics count it.
func seconds(d time.Duration) []point { return one(uint64(max(d, 0) / time.Second)) }

// device is a device's path.
func device(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return "/dev/" + name
}
