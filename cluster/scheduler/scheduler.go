// Package scheduler chooses a node for each pod that has none, and binds it there.
//
// One goroutine takes pods from the queue (package queue) and works on them one at a time: it
// brings its snapshot of the cluster up to date (package cache), asks the plugins of the pod's
// profile (packages framework and plugins) which nodes fit and which of those is best (cycle.go),
// and assumes the pod there. Binding is a call to the API server and runs alongside the next pods'
// cycles, a bounded number at a time (bind.go). What informers see goes into the cache and the
// queue (handlers.go). What does not work out ends in failure.go: the pod gets a condition and an
// event in upstream's words, and goes back into the queue.
//
// # How calls fail
//
// Nothing that happens to one pod stops the scheduler. A pod that fits nowhere waits for events
// that may help it. A call that fails (binding, mostly) takes back what was assumed, and the pod is
// tried again after a back-off. When the scheduler is killed, all that it knew is lost and nothing
// that matters: pods without a node are found again, and nominations are in their status.
package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/scheduler/cache"
	"github.com/coracle-project/coracle/cluster/scheduler/extender"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
	"github.com/coracle-project/coracle/cluster/scheduler/plugins"
	"github.com/coracle-project/coracle/cluster/scheduler/queue"
)

// Options are a Scheduler's settings. The zero value is a scheduler as upstream's is by default.
type Options struct {
	// Plugins are the settings of the default profile's plugins.
	Plugins plugins.Args
	// Profiles returns further profiles' plugins, or the default one's ("default-scheduler") if
	// that is to have others; by the name that pods choose them with. All sort the queue alike.
	Profiles map[string]func(*framework.Handle) []framework.Enabled
	// WithoutDefault is that there are no other profiles than Profiles.
	WithoutDefault bool
	// Extenders are asked about all profiles' pods.
	Extenders []*extender.Extender
	// InitialBackoff and MaxBackoff are how long a pod waits after its first failure, and at most;
	// 1 s and 10 s by default.
	InitialBackoff, MaxBackoff time.Duration
	// PercentageOfNodesToScore is at how many feasible nodes the search ends. 0 is adaptive: from
	// 50 % at 100 nodes down to 5 % in the largest clusters, and never less than 100 nodes.
	PercentageOfNodesToScore int
	// Percentages are the same for single profiles, by name.
	Percentages map[string]int
	// Parallelism is how many goroutines work on one pod; by default as many as there are CPUs, at
	// most 16.
	Parallelism int
	// Bindings is how many pods are bound at a time at most; by default 100.
	Bindings int
	// Recorder takes events, instead of one that writes them to the API.
	Recorder events.EventRecorder
	// Log gets errors and warnings; nil is the Set's.
	Log *slog.Logger
}

// Scheduler is made by New and runs once.
type Scheduler struct {
	profiles   map[string]*framework.Profile
	queue      *queue.Queue
	log        *slog.Logger
	cache      *cache.Cache
	snapshot   *framework.Snapshot
	handles    []*framework.Handle
	handle     *framework.Handle // what all handles have in common
	pods       corelisters.PodLister
	synced     []toolscache.DoneChecker
	recorders  map[string]events.EventRecorder
	broadcasts *broadcasts
	// percentages are those of nodes to score, by profile.
	percentages map[string]int
	extenders   []*extender.Extender
	parallel    framework.Parallel
	// cycle is held while snapshot is read or brought up to date, which caughtUp does after the
	// last deletion.
	cycle    sync.Mutex
	caughtUp *time.Timer
	// next is where among the nodes the next search starts, statuses where it works. places are where
	// the nodes that it has found are.
	next     int
	statuses []*framework.Status
	places   []int

	binding   chan struct{} // a place for each binding that runs
	preparing preparing
	patches   chan func(context.Context)
	aside     aside
	finished  sync.WaitGroup
}

// New returns a scheduler over set's informers, which their owner starts. It makes no call.
func New(set *client.Set, opts Options) (*Scheduler, error) {
	if opts.Parallelism == 0 {
		opts.Parallelism = min(runtime.GOMAXPROCS(0), 16)
	}
	if opts.Bindings == 0 {
		opts.Bindings = 100
	}
	opts.Log = cmp.Or(opts.Log, set.Logger())
	for _, e := range opts.Extenders {
		e.Log = opts.Log
	}
	s := &Scheduler{
		log:      opts.Log,
		profiles: make(map[string]*framework.Profile), cache: cache.New(opts.Log), snapshot: &framework.Snapshot{},
		pods: set.Informers.Core().V1().Pods().Lister(), recorders: make(map[string]events.EventRecorder),
		percentages: make(map[string]int), extenders: opts.Extenders, parallel: framework.Parallel(opts.Parallelism),
		binding: make(chan struct{}, opts.Bindings), patches: make(chan func(context.Context), 1000),
	}
	s.handle = &framework.Handle{
		Kube: set.Kube, Informers: set.Informers, Waiting: framework.NewWaitingPods(), Parallel: s.parallel, Log: s.log,
		Background: s.background, Moves: s.moves,
	}
	if opts.Recorder == nil {
		s.broadcasts = newBroadcasts(&events.EventSinkImpl{Interface: set.Kube.EventsV1()}, s.log)
	}
	if len(opts.Extenders) > 0 {
		s.handle.Preempt = s.preemptExtended
	}
	makers := make(map[string]func(*framework.Handle) []framework.Enabled)
	if !opts.WithoutDefault {
		makers[v1.DefaultSchedulerName] = func(h *framework.Handle) []framework.Enabled { return plugins.Default(h, opts.Plugins) }
	}
	for name, f := range opts.Profiles {
		makers[name] = f
	}
	waiting := queue.Options{
		Profiles: s.profiles, Current: s.current, InitialBackoff: opts.InitialBackoff, MaxBackoff: opts.MaxBackoff,
		// What may help a pod that an extender has turned down, only the extender knows.
		Curious: len(opts.Extenders) > 0,
	}
	for name, f := range makers {
		if err := s.addProfile(name, f, opts.Recorder); err != nil {
			return nil, err
		}
		s.percentages[name] = opts.PercentageOfNodesToScore
		if percentage, ok := opts.Percentages[name]; ok {
			s.percentages[name] = percentage
		}
		waiting.Less = s.profiles[name].QueueSort.Less // all sort alike
	}
	s.queue = queue.New(waiting)
	s.caughtUp = time.AfterFunc(0, s.catchUp)
	s.caughtUp.Stop()
	for _, h := range s.handles {
		h.NominatedTo = func(node string) []*framework.PodInfo { return s.queue.Nominations()[node] }
		h.Activate, h.Failed, h.Reopened, h.LetGo = s.queue.Activate, s.queue.Failed, s.queue.Reopened, s.letGoOf
	}
	return s, s.watch(set.Informers)
}

func (s *Scheduler) addProfile(name string, f func(*framework.Handle) []framework.Enabled, recorder events.EventRecorder) error {
	if recorder == nil {
		recorder = s.broadcasts.recorder(name)
	}
	h := s.handle.Share()
	h.Recorder = recorder
	profile, err := framework.NewProfile(name, f(h)...)
	if err != nil {
		return fmt.Errorf("scheduler: %w", err)
	}
	profile.Log = s.log
	h.Profile = profile
	s.profiles[name], s.recorders[name] = profile, recorder
	s.handles = append(s.handles, h)
	return nil
}

// current returns the newest version of pod that the informer has, nil if it is gone.
func (s *Scheduler) current(pod *v1.Pod) *v1.Pod {
	p, err := s.pods.Pods(pod.Namespace).Get(pod.Name)
	if err != nil || p.UID != pod.UID || terminal(p) {
		return nil
	}
	return p
}

// letGo is how long after the last deletion of a pod or a node the snapshot lets go of what is
// gone. Pods that are scheduled meanwhile have it let go at once.
const letGo = 10 * time.Second

// catchUp brings the snapshot up to date: after a burst, it would keep all that was deleted until
// the next pod.
func (s *Scheduler) catchUp() {
	s.cycle.Lock()
	defer s.cycle.Unlock()
	s.cache.Update(s.snapshot)
}

// aside is what plugins have running alongside the cycles.
type aside struct {
	mu   sync.Mutex
	ctx  context.Context //nolint:containedctx // of all of it; nil until the scheduler runs
	wait []func(context.Context)
	over bool
}

// background implements framework.Handle.Background.
func (s *Scheduler) background(f func(context.Context)) {
	s.aside.mu.Lock()
	defer s.aside.mu.Unlock()
	switch ctx := s.aside.ctx; {
	case s.aside.over:
	case ctx != nil:
		s.finished.Go(func() { f(ctx) })
	default:
		s.aside.wait = append(s.aside.wait, f)
	}
}

// begin runs what plugins have asked for already.
func (s *Scheduler) begin(ctx context.Context) {
	s.aside.mu.Lock()
	defer s.aside.mu.Unlock()
	s.aside.ctx = ctx
	for _, f := range s.aside.wait {
		s.finished.Go(func() { f(ctx) })
	}
	s.aside.wait = nil
}

// end waits for all that runs, after which nothing starts.
func (s *Scheduler) end() {
	s.aside.mu.Lock()
	s.aside.over = true
	s.aside.mu.Unlock()
	s.finished.Wait()
}

// Run waits for the informers and then schedules pods until ctx ends and the bindings that run then
// have returned. It returns an error only if ctx ends before the informers have synced.
func (s *Scheduler) Run(ctx context.Context) error {
	if !toolscache.WaitFor(ctx, "", s.synced...) {
		return fmt.Errorf("scheduler: wait for informers: %w", context.Cause(ctx))
	}
	if s.broadcasts != nil {
		if err := s.broadcasts.start(ctx); err != nil {
			return fmt.Errorf("scheduler: %w", err)
		}
		defer s.broadcasts.stop()
	}
	s.begin(ctx)
	stop := context.AfterFunc(ctx, s.queue.Close)
	defer stop()
	defer s.caughtUp.Stop()
	s.finished.Go(func() { s.patch(ctx) })
	active, _, _ := s.queue.Len()
	s.log.Info("scheduler runs", "profiles", len(s.profiles), "pods waiting", active)
	for {
		pod := s.queue.Pop()
		if pod == nil {
			break
		}
		s.cycle.Lock()
		s.scheduleGuarded(ctx, pod)
		s.cycle.Unlock()
	}
	s.end()
	return nil
}
