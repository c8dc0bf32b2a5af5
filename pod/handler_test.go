package pod

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// TestHandler: what a handler is configured for reaches its containers, and no others.
func TestHandler(t *testing.T) {
	b := newBench(t)
	handlers := map[string]podconfig.Handler{
		"own": {},
		"vm": {
			Runtime: "oci:/usr/bin/vm", PrivilegedWithoutHostDevices: true,
			Annotations: []string{"vm.example.*", "exact"}, Overhead: &podconfig.Resources{MemoryLimit: 1 << 20},
		},
	}
	m, h := b.manager(func(o *Options, _ *Deps) { o.Handlers = func() map[string]podconfig.Handler { return handlers } })
	defer func() {
		for p := range m.Pods(state.PodFilter{}) {
			ok(t, m.Stop(t.Context(), p.ID))
			ok(t, m.Remove(t.Context(), p.ID))
		}
		idle(t, m)
	}()
	create := func(handler string) (state.Pod, *specs.Spec, *proc) {
		pc := podConfig("p-" + handler)
		pc.RuntimeHandler, pc.Privileged = handler, true
		pc.Annotations = map[string]string{"vm.example.kernel": "small", "vm.example.disk": "pod", "exact": "1", "secret": "x"}
		podID := must[string](t)(m.Run(t.Context(), pc))
		c := containerConfig("run")
		c.Security.Privileged = true
		c.Annotations = map[string]string{"vm.example.disk": "container"}
		id := must[string](t)(m.Create(t.Context(), podID, c))
		ok(t, m.StartContainer(t.Context(), id))
		raw, err := os.ReadFile(filepath.Join(b.state, "containers", id, "config.json"))
		ok(t, err)
		var spec specs.Spec
		ok(t, json.Unmarshal(raw, &spec))
		maps.DeleteFunc(spec.Annotations, func(name, _ string) bool { return strings.HasPrefix(name, "io.kubernetes.cri.") })
		h.mu.Lock()
		defer h.mu.Unlock()
		return must[state.Pod](t)(m.Pod(podID)), &spec, h.procs[id]
	}

	p, spec, proc := create("vm")
	if want := map[string]string{"vm.example.kernel": "small", "vm.example.disk": "container", "exact": "1"}; !maps.Equal(spec.Annotations,
		want) {
		t.Errorf("annotations %v, want %v", spec.Annotations, want)
	}
	if len(spec.Linux.Devices) > 0 || spec.Linux.Resources.Devices[0].Allow {
		t.Errorf("privileged without host devices has %v, %v", spec.Linux.Devices, spec.Linux.Resources.Devices)
	}
	if p.Config.Overhead == nil || p.Config.Overhead.MemoryLimit != 1<<20 || proc.handler != "oci:/usr/bin/vm" {
		t.Errorf("overhead %+v, handler %q", p.Config.Overhead, proc.handler)
	}

	p, spec, proc = create("own")
	if len(spec.Annotations) > 0 || len(spec.Linux.Devices) == 0 || !spec.Linux.Resources.Devices[0].Allow ||
		p.Config.Overhead != nil || proc.handler != "" {
		t.Errorf("our own runtime: annotations %v, %d devices, overhead %v, handler %q", spec.Annotations, len(spec.Linux.Devices),
			p.Config.Overhead, proc.handler)
	}
}

// TestHandlerThatIsGone: pods outlive a change of the configuration.
func TestHandlerThatIsGone(t *testing.T) {
	b := newBench(t)
	handlers := map[string]podconfig.Handler{"old": {}, "new": {}}
	m, _ := b.manager(func(o *Options, _ *Deps) { o.Handlers = func() map[string]podconfig.Handler { return handlers } })
	pc := podConfig("p")
	pc.RuntimeHandler = "old"
	podID := must[string](t)(m.Run(t.Context(), pc))
	delete(handlers, "old")
	_, err := m.Create(t.Context(), podID, containerConfig("run"))
	if !errors.Is(err, errdefs.ErrPrecondition) ||
		!strings.Contains(err.Error(), `runtime handler "old" of the pod is no longer configured; there are ["new"]`) {
		t.Errorf("%v", err)
	}
	pc = podConfig("q")
	pc.RuntimeHandler = "old"
	if _, err := m.Run(t.Context(), pc); !errors.Is(err, errdefs.ErrInvalid) ||
		!strings.Contains(err.Error(), `unknown runtime handler "old"; there are ["new"]`) {
		t.Errorf("%v", err)
	}
	ok(t, m.Stop(t.Context(), podID))
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}
