// Package eviction ends pods that use more local storage than they may, and pods of a node that
// runs short of memory or disk.
//
// Two things go on, each with a clock of its own. Pods with limits of local storage (an emptyDir's
// sizeLimit, limits of ephemeral-storage) have what they take counted once a minute; of other pods
// nothing is counted. And every ten seconds the node's free memory and disk are compared with
// thresholds, which costs one read of /proc/meminfo and one statfs for each disk. Only below a
// threshold more is done: the node gets a condition, which it keeps for a while after it has
// recovered; where a disk is full unused images are removed; and if that does not help, one pod is
// ended, and after ten seconds the next. Which one is upstream's order: those that use more than
// they requested first, among them those of low priority, among them those that exceed their
// request by most.
//
// Upstream's manager cannot be used itself: its package links cAdvisor and the scheduler.
//
// A figure that cannot be read is logged and missing; no threshold is crossed by it. Nothing is
// remembered over a restart but what the node's status says.
package eviction

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/kubelet/status"
)

// Reason is that of pods that were evicted, or not admitted to a node that is short of something.
const Reason = "Evicted"

// Options are what a Manager works with. All fields but the policy are needed.
type Options struct {
	Policy Policy
	// RootDir is on the disk that volumes and logs are on.
	RootDir string
	// ImageDir returns a directory on the disk that images and writable layers are on, nothing if
	// that is not known. It is asked until it answers.
	ImageDir func(context.Context) (string, error)
	Runtime  *cri.Client
	// Pods returns the pods that have not ended.
	Pods func() []*v1.Pod
	// Volumes returns what the pod's volumes take, LogDir where its containers' logs are.
	Volumes func(context.Context, *v1.Pod) []statsapi.VolumeStats
	LogDir  func(*v1.Pod) string
	// Files returns what else the pod's containers can write to that is not the runtime's.
	Files func(*v1.Pod) []string
	// Evict ends a pod; it returns false if the pod is ending by an eviction already.
	Evict func(types.UID, status.Eviction) bool
	// Reclaim removes unused images.
	Reclaim func(context.Context) error
	// Changed is called when Conditions has changed.
	Changed  func()
	Recorder record.EventRecorder
	// Node names the node in events.
	Node *v1.ObjectReference
	// Log gets errors and warnings; nil discards them.
	Log *slog.Logger
}

// Manager evicts pods. Its methods are safe for concurrent use.
type Manager struct {
	Options
	memory func() (figure, error)
	disk   func(dir string) (diskFigures, error)

	imageDir atomic.Pointer[string]

	mu     sync.Mutex
	lastAt map[v1.NodeConditionType]time.Time // when the node was last seen to be short
	now    []v1.NodeConditionType
}

// New returns a Manager. It touches nothing.
func New(o Options) *Manager {
	o.Policy = o.Policy.withDefaults()
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Manager{Options: o, memory: readMemory, disk: readDisk, lastAt: map[v1.NodeConditionType]time.Time{}}
}

// Run works until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { every(ctx, m.Policy.Every, m.watchNode) })
	wg.Go(func() { every(ctx, m.Policy.LimitsEvery, m.enforceLimits) })
}

func every(ctx context.Context, d time.Duration, f func(context.Context)) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		f(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Conditions returns those of the node that are true: MemoryPressure, DiskPressure.
func (m *Manager) Conditions() []v1.NodeConditionType {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Admit says whether the node is well enough to take the pod. Without disk it takes only critical
// ones, without memory also those that have requested some or tolerate it.
func (m *Manager) Admit(pod *v1.Pod) (reason, message string, ok bool) {
	now := m.Conditions()
	if len(now) == 0 || kubetypes.IsCriticalPod(pod) {
		return "", "", true
	}
	if len(now) == 1 && now[0] == v1.NodeMemoryPressure {
		taint := &v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
		if v1qos.GetPodQOS(pod) != v1.PodQOSBestEffort ||
			corev1.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, taint, false) {
			return "", "", true
		}
	}
	return Reason, conditionMessage(now), false
}

// watchNode looks at the node once, and does what its state asks for.
func (m *Manager) watchNode(ctx context.Context) {
	seen := m.observe(ctx)
	met := m.Policy.met(seen)
	m.note(met, time.Now())
	if len(met) == 0 {
		return
	}
	short := met[0]
	m.Recorder.Eventf(m.Node, v1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s", short.resource)
	if short.onDisk(m.sharedDisk(ctx)) {
		if err := m.Reclaim(ctx); err != nil && ctx.Err() == nil {
			m.Log.Warn("remove unused images as the disk is nearly full", "err", err)
		}
		if seen = m.observe(ctx); len(m.Policy.met(seen)) == 0 {
			return
		}
	}
	m.evictOne(ctx, short, seen)
}

// evictOne ends the pod that upstream would.
func (m *Manager) evictOne(ctx context.Context, short signal, seen observations) {
	pods := slices.DeleteFunc(m.Pods(), kubetypes.IsCriticalPod)
	uses, err := m.usages(ctx, pods, short.resource != v1.ResourceMemory)
	if err != nil {
		if ctx.Err() == nil {
			m.Log.Warn("what pods use is not known: none can be evicted", "err", err)
		}
		return
	}
	rank(pods, uses, short, m.sharedDisk(ctx))
	for _, pod := range pods {
		message, annotations := m.shortMessage(short, pod, uses[pod.UID], seen)
		if m.evict(pod, message, annotations, true) {
			return
		}
	}
	m.Log.Warn("the node is short, and no pod can be evicted", "resource", short.resource)
}

func (m *Manager) evict(pod *v1.Pod, message string, annotations map[string]string, disruption bool) bool {
	if !m.Evict(pod.UID, status.Eviction{Reason: Reason, Message: message, Disruption: disruption}) {
		return false
	}
	m.Log.Info("evicting a pod", "pod", pod.Namespace+"/"+pod.Name, "why", strings.TrimSpace(message))
	m.Recorder.AnnotatedEventf(pod, annotations, v1.EventTypeWarning, Reason, "%s", message)
	return true
}

// note keeps the conditions: each is true from when the node is short until it has not been for
// Policy.Transition.
func (m *Manager) note(met []signal, at time.Time) {
	m.mu.Lock()
	for _, s := range met {
		m.lastAt[s.condition] = at
	}
	var now []v1.NodeConditionType
	for _, c := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure} {
		if last, was := m.lastAt[c]; was && at.Sub(last) < m.Policy.Transition {
			now = append(now, c)
		}
	}
	changed := !slices.Equal(m.now, now)
	m.now = now
	m.mu.Unlock()
	if changed {
		m.Changed()
	}
}
