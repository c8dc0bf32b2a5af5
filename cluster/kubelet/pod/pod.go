// Package pod runs pods: one goroutine per pod brings what the runtime has of it together with
// what the API asks for.
//
// # A pod's life
//
//	Apply ─► starting and keeping up ─► ending ─► ended ─► gone
//
// Apply gives a pod to the Runner, and again each of its changes. Its goroutine sleeps until
// something happens: the object changed, the runtime or a probe told of a container (Wake), a
// volume's content has come, or a back-off is over. Then it looks at what the runtime has
// (cri.Client.Pod), decides what comes next (decide.Next, a pure function), does that, and has the
// new status written. It ends when the pod's object is being deleted (Apply), when the object is
// gone (Remove), when all containers are done, or when the node ends it (an active deadline,
// Evict). Ending stops the containers within their grace, then the sandbox, frees volumes and
// cgroups and reports the final status; after that the object may be deleted, and when it is gone
// (Remove), containers, sandbox and logs are removed.
//
// # When calls fail
//
// A step that fails leaves its reason in the container's status and an event, and is tried again:
// after the container's or the image's back-off, or after 1 to 60 s for everything else. No failure
// of one pod is noticed by another.
//
// # Restarts of the kubelet
//
// Nothing is kept on disk but what volumes need. All that has to be known of a container is in its
// CRI labels and annotations; a pod that runs as its object says is left alone.
package pod

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/kubelet/images"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/criconfig"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/hook"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/podlogs"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/resize"
	"github.com/coracle-project/coracle/cluster/kubelet/probe"
	"github.com/coracle-project/coracle/cluster/kubelet/status"
)

// Cgroups makes the cgroup that a pod's containers are in.
type Cgroups interface {
	resize.Cgroups
	criconfig.Cgroups
	// Remove removes the pod's cgroup; nothing runs in it any more.
	Remove(uid types.UID) error
}

// Users gives pods that ask for it ids of their own.
type Users interface {
	criconfig.Users
	// Release frees the ids of a pod of which nothing is left. Of takes new ones if the pod, being a
	// static one, starts again.
	Release(uid types.UID)
}

// Config is what a Runner works with. All fields are needed, but those that say otherwise.
type Config struct {
	CRI      *cri.Client
	Images   *images.Puller
	Volumes  Volumes
	Env      criconfig.Env
	Probes   *probe.Manager
	Status   *status.Writer
	Cgroups  Cgroups
	Users    Users
	DNS      criconfig.DNS
	Recorder record.EventRecorder
	// RuntimeHandler resolves a RuntimeClass's name.
	RuntimeHandler func(class *string) (string, error)
	// AdmitResize is resize.Node's Admit.
	AdmitResize func(pod *v1.Pod, accept func()) (message string, ok bool)
	// HostIPs returns the node's addresses.
	HostIPs func() []string
	// RootDir is the kubelet's directory.
	RootDir       string
	Logs          podlogs.Dirs
	ClusterDomain string
	// MemoryCapacity of the node, in bytes, for OOM scores.
	MemoryCapacity int64
	// SeccompUnconfined leaves containers that name no seccomp profile without one; else they have
	// the runtime's.
	SeccompUnconfined bool
	// Networks admit pods in this order, and forget them in the opposite one; there may be none.
	Networks []Network
	// NoAddresses, if set, says why pods cannot have addresses of their own yet. RetryAll follows
	// when they can.
	NoAddresses func() error
	// Gone, if set, is called when nothing is left of a pod. A static pod whose file came back
	// meanwhile may run again by then: View knows it.
	Gone func(uid types.UID)
	// Log gets errors and warnings; nil discards them.
	Log *slog.Logger
}

// Runner runs the pods of a node.
type Runner struct {
	Config
	configs *criconfig.Maker
	resizes resize.Node
	hooks   *hook.Runner
	ctx     context.Context
	wg      sync.WaitGroup
	links   podlogs.Links

	mu      sync.Mutex
	workers map[types.UID]*worker
}

// NewRunner returns a Runner whose pods' goroutines end, leaving their containers alone, when ctx
// does.
func NewRunner(ctx context.Context, c Config) *Runner {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	configs := &criconfig.Maker{
		Log:    c.Log,
		Images: c.CRI.Images, Volumes: c.Volumes, Env: c.Env, Cgroups: c.Cgroups, Users: c.Users, DNS: c.DNS, HostIPs: c.HostIPs,
		RootDir: c.RootDir, Logs: c.Logs, ClusterDomain: c.ClusterDomain,
		MemoryCapacity: c.MemoryCapacity, SeccompUnconfined: c.SeccompUnconfined,
	}
	return &Runner{
		Config: c, configs: configs, ctx: ctx, workers: map[types.UID]*worker{}, links: podlogs.Links{Log: c.Log},
		hooks: &hook.Runner{Exec: c.CRI.Exec, Recorder: c.Recorder},
		resizes: resize.Node{
			Runtime: c.CRI.Runtime, Recorder: c.Recorder, Admit: c.AdmitResize, Cgroups: c.Cgroups, Resources: configs.ContainerResources,
		},
	}
}

// Apply runs a pod, or tells its goroutine of a change. The object is shared and stays unchanged.
func (r *Runner) Apply(pod *v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, ok := r.workers[pod.UID]
	if !ok {
		w = r.newWorkerLocked(pod)
	}
	w.Apply(pod)
}

// Reject reports a pod that the node does not admit; nothing of it is run.
func (r *Runner) Reject(pod *v1.Pod, reason, message string) {
	r.Recorder.Event(pod, v1.EventTypeWarning, reason, message)
	rejected := pod.DeepCopy()
	rejected.Status = status.Rejected(pod, reason, message, time.Now())
	r.Apply(rejected)
}

// Evict ends a pod that the node cannot keep, within stop.EvictionGrace. It returns false if there
// is none with this UID, or it has ended or been evicted before.
func (r *Runner) Evict(uid types.UID, e status.Eviction) bool {
	w := r.worker(uid)
	return w != nil && w.Evict(e)
}

// Remove ends a pod whose object is gone, and removes all of it from the node. The object's last
// state tells the grace it has.
func (r *Runner) Remove(pod *v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w, ok := r.workers[pod.UID]; ok {
		w.Remove(pod)
	}
}

// RemoveUnknown ends and removes a pod that no Apply has told of: one that the runtime still has
// from before the kubelet was restarted.
func (r *Runner) RemoveUnknown(pod *v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.workers[pod.UID]; ok {
		return
	}
	r.Log.Info("ending a pod that the API no longer has", "pod", pod.Namespace+"/"+pod.Name, "uid", pod.UID)
	w := r.newWorkerLocked(pod)
	w.Remove(pod)
}

// Wake has a pod looked at again. An unknown UID is ignored, and false is returned.
func (r *Runner) Wake(uid types.UID) bool {
	w := r.worker(uid)
	if w == nil {
		return false
	}
	w.Wake()
	return true
}

// Retry has a pod looked at again, and what failed tried again at once: what it waited for may have
// come.
func (r *Runner) Retry(uid types.UID) {
	if w := r.worker(uid); w != nil {
		w.Retry()
	}
}

// RetryAll does what Retry does to all pods.
func (r *Runner) RetryAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workers {
		w.Retry()
	}
}

// WakeAll has all pods looked at again.
func (r *Runner) WakeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workers {
		w.Wake()
	}
}

// Wait returns when all pods' goroutines have ended; the Runner's context must have.
func (r *Runner) Wait() { r.wg.Wait() }

func (r *Runner) worker(uid types.UID) *worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.workers[uid]
}

func (r *Runner) newWorkerLocked(pod *v1.Pod) *worker {
	w := newWorker(r, pod)
	r.workers[pod.UID] = w
	r.wg.Go(w.run)
	return w
}

// forget takes a pod that is gone off the list. A static pod whose file came back while it went
// starts again, under the same UID.
func (r *Runner) forget(w *worker) {
	if r.Gone != nil {
		defer r.Gone(w.uid)
	}
	r.Users.Release(w.uid) // while no other goroutine of this UID can have taken ids
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Status.Forget(w.uid)
	delete(r.workers, w.uid)
	if again := w.Revived(); again != nil && r.ctx.Err() == nil {
		r.newWorkerLocked(again).Apply(again)
	}
}

// View is what is known of a pod now: its object with the status that is reported of it and the
// resources that it was allocated, and what the runtime was last seen to have.
type View struct {
	Pod      *v1.Pod
	Observed *kubecontainer.PodStatus
	// Removed says that the API does not have the object any more: another pod may have its name.
	Removed bool
}

// Views returns what is known of all pods. What they point to must not be changed.
func (r *Runner) Views() []View {
	r.mu.Lock()
	workers := slices.Collect(maps.Values(r.workers))
	r.mu.Unlock()
	views := make([]View, 0, len(workers))
	for _, w := range workers {
		views = append(views, w.view())
	}
	return views
}

// View returns what is known of one pod.
func (r *Runner) View(uid types.UID) (View, bool) {
	w := r.worker(uid)
	if w == nil {
		return View{}, false
	}
	return w.view(), true
}
