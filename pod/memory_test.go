package pod

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// An idle pod with a container, described at the length that the kubelet does, costs
// the daemon little, and no goroutine.
func TestIdlePodIsSmall(t *testing.T) {
	const pods, most = 200, 60 << 10
	b := newBench(t)
	m, _ := b.manager()
	use := func() (heap uint64, goroutines int) {
		idle(t, m)
		runtime.GC()
		runtime.GC()
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		return ms.HeapAlloc, runtime.NumGoroutine()
	}
	heap, goroutines := use()
	for i := range pods {
		cfg := podConfig(fmt.Sprint("pod-", i))
		cfg.Labels, cfg.Annotations = many("label", i, 10), many("annotation", i, 20)
		podID := must[string](t)(m.Run(t.Context(), cfg))
		c := containerConfig("run")
		c.Labels, c.Annotations = many("label", i, 10), many("annotation", i, 20)
		c.Security.Seccomp.Type = podconfig.ProfileRuntimeDefault
		for j := range 40 {
			c.Env = append(c.Env, [2]string{fmt.Sprint("SERVICE_", j, "_PORT"), fmt.Sprint("tcp://10.0.0.", j, ":", i)})
		}
		for j := range 5 {
			c.Mounts = append(c.Mounts, podconfig.Mount{ContainerPath: fmt.Sprint("/m", j), HostPath: b.state})
		}
		ok(t, m.StartContainer(t.Context(), must[string](t)(m.Create(t.Context(), podID, c))))
	}
	heapAfter, goroutinesAfter := use()
	per := (int64(heapAfter) - int64(heap)) / pods
	t.Logf("%d bytes per pod", per)
	if per > most {
		t.Errorf("a pod costs %d bytes, more than %d", per, most)
	}
	if goroutinesAfter > goroutines+2 {
		t.Errorf("%d goroutines more for %d pods", goroutinesAfter-goroutines, pods)
	}
	for p := range m.Pods(state.PodFilter{}) {
		ok(t, m.Remove(t.Context(), p.ID))
	}
	idle(t, m)
	b.nothingLeft()
}

func many(what string, i, n int) map[string]string {
	out := map[string]string{}
	for j := range n {
		out[fmt.Sprint("example.com/", what, "-", j)] = fmt.Sprint("value-of-some-length-", i, "-", j)
	}
	return out
}
