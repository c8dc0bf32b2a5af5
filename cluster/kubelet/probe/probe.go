// Package probe asks running containers whether they have started, are ready and are alive.
//
// Watch starts the probes of one container instance and Forget ends them; between the two each
// probe of the container has one goroutine and one timer. The first startup probe is made as soon
// as its initial delay is over; liveness and readiness wait until the startup probe has succeeded.
// A change of a result calls the function that New was given, and Get reads the newest. A container
// is identified by its CRI id: a restarted container is another one, with no results yet.
//
// A probe that could not be made at all (a bad port name) counts neither way and is reported as an
// event, as upstream does. After a failed liveness or a decided startup probe the container is left
// alone: someone is about to end it.
package probe

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/probe"

	"github.com/coracle-project/coracle/cluster/kubelet/ref"
)

// Kind is one of the three questions.
type Kind string

// The kinds, as they are written in events.
const (
	Startup   Kind = "Startup"
	Readiness Kind = "Readiness"
	Liveness  Kind = "Liveness"
)

// Result is the answer that counts: one that came as often in a row as its threshold asks for.
type Result int

// A container without a result is Unknown: its probe has not answered often enough yet.
const (
	Unknown Result = iota
	Success
	Failure
)

// Target is a running container instance.
type Target struct {
	Pod       *v1.Pod
	Container *v1.Container
	ID        string // CRI's, without the runtime's name
	PodIP     string
	StartedAt time.Time
}

// Exec runs a command in a container and returns what it printed; a command that fails is an error
// that implements k8s.io/utils/exec.ExitError.
type Exec func(ctx context.Context, id string, command []string, timeout time.Duration) ([]byte, error)

// Manager makes all probes of a node.
type Manager struct {
	ask      func(context.Context, Kind, *v1.Probe, Target) (probe.Result, string, error)
	recorder record.EventRecorder
	changed  func(types.UID)
	began    time.Time

	mu      sync.Mutex
	targets map[string]*target // by container id
}

type target struct {
	uid     types.UID
	results map[Kind]Result
	stops   map[Kind]context.CancelFunc
	started chan struct{} // closed when liveness and readiness may begin
	once    sync.Once
}

// New returns a Manager that runs commands with exec and tells changed which pod has a new result.
func New(exec Exec, recorder record.EventRecorder, changed func(types.UID)) *Manager {
	return &Manager{
		ask: newAsker(exec), recorder: recorder, changed: changed,
		began: time.Now(), targets: map[string]*target{},
	}
}

// Watch starts a container's probes, if it has any and they have not started.
func (m *Manager) Watch(t Target) {
	kinds := Of(t.Container)
	if len(kinds) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.targets[t.ID]; ok {
		return
	}
	tg := &target{uid: t.Pod.UID, results: map[Kind]Result{}, stops: map[Kind]context.CancelFunc{}, started: make(chan struct{})}
	m.targets[t.ID] = tg
	if _, ok := kinds[Startup]; !ok {
		close(tg.started)
		tg.once.Do(func() {})
	}
	for kind, spec := range kinds {
		ctx, cancel := context.WithCancel(context.Background())
		tg.stops[kind] = cancel
		go m.run(ctx, kind, spec, t, tg)
	}
}

// Of returns the probes that a container asks for.
func Of(c *v1.Container) map[Kind]*v1.Probe {
	probes := map[Kind]*v1.Probe{Startup: c.StartupProbe, Readiness: c.ReadinessProbe, Liveness: c.LivenessProbe}
	maps.DeleteFunc(probes, func(_ Kind, p *v1.Probe) bool { return p == nil })
	return probes
}

// Seed sets a result that was known before the kubelet was restarted, so that a container which was
// started or ready stays so until a probe says otherwise.
func (m *Manager) Seed(id string, kind Kind, r Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	tg, ok := m.targets[id]
	if !ok {
		return
	}
	if _, known := tg.results[kind]; known {
		return
	}
	tg.results[kind] = r
	if kind == Startup && r == Success {
		if stop, ok := tg.stops[Startup]; ok {
			stop()
		}
		tg.once.Do(func() { close(tg.started) })
	}
}

// Get returns the result that counts for a container instance.
func (m *Manager) Get(id string, kind Kind) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	if tg, ok := m.targets[id]; ok {
		return tg.results[kind]
	}
	return Unknown
}

// Quiet ends the liveness and startup probes of a pod that is being stopped: it must not be killed
// for not answering. Readiness goes on until the containers are gone.
func (m *Manager) Quiet(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, tg := range m.targets {
		if tg.uid == uid {
			for _, kind := range []Kind{Liveness, Startup} {
				if stop, ok := tg.stops[kind]; ok {
					stop()
				}
			}
		}
	}
}

// Keep ends the probes of all container instances of a pod but those with these ids.
func (m *Manager) Keep(uid types.UID, ids ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, tg := range m.targets {
		if tg.uid == uid && !slices.Contains(ids, id) {
			for _, stop := range tg.stops {
				stop()
			}
			delete(m.targets, id)
		}
	}
}

// Close ends all probes.
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, tg := range m.targets {
		for _, stop := range tg.stops {
			stop()
		}
		delete(m.targets, id)
	}
}

// run asks until ctx ends or the question is settled.
func (m *Manager) run(ctx context.Context, kind Kind, spec *v1.Probe, t Target, tg *target) {
	if kind != Startup {
		select {
		case <-ctx.Done():
			return
		case <-tg.started:
		}
	}
	period := max(time.Duration(spec.PeriodSeconds)*time.Second, time.Second)
	delay := time.Duration(spec.InitialDelaySeconds) * time.Second
	wait := min(time.Until(t.StartedAt.Add(delay)), delay) // the clock may have been set back since
	if t.StartedAt.Before(m.began) {
		// The kubelet was restarted: do not ask all containers of the node at once.
		wait = max(wait, time.Duration(rand.Float64()*float64(period)))
	}
	var last probe.Result
	inARow := int32(0)
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(period)
		answer, ok := m.probe(ctx, kind, spec, t)
		if !ok || ctx.Err() != nil {
			continue
		}
		if answer != last {
			last, inARow = answer, 0
		}
		inARow++
		result, threshold := Success, spec.SuccessThreshold
		if answer == probe.Failure {
			result, threshold = Failure, spec.FailureThreshold
		}
		if inARow < threshold {
			continue
		}
		m.set(ctx, t.ID, kind, result)
		if kind == Startup || kind == Liveness && result == Failure {
			return
		}
	}
}

func (m *Manager) set(ctx context.Context, id string, kind Kind, r Result) {
	m.mu.Lock()
	tg, ok := m.targets[id]
	if !ok || ctx.Err() != nil || tg.results[kind] == r {
		m.mu.Unlock()
		return
	}
	tg.results[kind] = r
	if kind == Startup && r == Success {
		tg.once.Do(func() { close(tg.started) })
	}
	m.mu.Unlock()
	m.changed(tg.uid)
}

// tries is how often one probe is attempted when it cannot be made at all.
const tries = 3

// probe asks once. It returns Success or Failure, or false if there was no answer that counts.
func (m *Manager) probe(ctx context.Context, kind Kind, spec *v1.Probe, t Target) (probe.Result, bool) {
	var result probe.Result
	var output string
	var err error
	for range tries {
		if result, output, err = m.ask(ctx, kind, spec, t); err == nil || ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return probe.Unknown, false
	}
	about := ref.Container(t.Pod, t.Container)
	switch {
	case err != nil:
		m.recorder.Eventf(about, v1.EventTypeWarning, "Unhealthy", "%s probe errored and resulted in %s state: %s", kind, result, err)
		return probe.Unknown, false
	case result == probe.Success:
		return probe.Success, true
	case result == probe.Warning:
		m.recorder.Eventf(about, v1.EventTypeWarning, "ProbeWarning", "%s probe warning: %s", kind, output)
		return probe.Success, true
	case result == probe.Failure:
		m.recorder.Eventf(about, v1.EventTypeWarning, "Unhealthy", "%s probe failed: %s", kind, output)
	}
	return probe.Failure, true
}
