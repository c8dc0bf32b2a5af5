package metricsapi

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/metrics"
)

// usage says cores (a rate) and bytes as metrics-server does: in billionths of a core, and in
// powers of two where that is exact.
func usage(cores float64, memory int64) v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewScaledQuantity(int64(cores*1e9), resource.Nano),
		v1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
	}
}

func described(name, namespace string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: namespace, CreationTimestamp: metav1.Now(), Labels: labels}
}

func stamp(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

func lasting(d time.Duration) metav1.Duration {
	return metav1.Duration{Duration: d.Round(time.Millisecond)}
}

// sortContainers puts the figures in the order of the pod's containers.
func sortContainers(p *metrics.PodMetrics, pod *v1.Pod) {
	place := map[string]int{}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			place[list[i].Name] = len(place) + 1
		}
	}
	slices.SortFunc(p.Containers, func(a, b metrics.ContainerMetrics) int {
		return cmp.Or(cmp.Compare(place[a.Name], place[b.Name]), cmp.Compare(a.Name, b.Name))
	})
}
