// Package node tells the API about the machine: it registers the node, renews its lease, and keeps
// its status right.
//
// The node is registered with its whole status, so that it is Ready from its first moment if the
// runtime is. Until the runtime is ready it is asked several times a second; afterwards the status
// is looked at every ten seconds and written when it changed, or every five minutes. The lease,
// which is what tells that the node lives, is renewed every ten seconds. Failed writes are logged
// and tried again; none is fatal.
package node

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/apimachinery/lease"
	nodeutil "k8s.io/component-helpers/node/util"
	kubeletutil "k8s.io/kubernetes/pkg/kubelet/util"
	"k8s.io/utils/clock"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

const (
	checkEvery    = 10 * time.Second
	reportEvery   = 5 * time.Minute
	unreadyEvery  = 100 * time.Millisecond
	pluginEvery   = time.Second // an administrator may take long to install one
	registerFirst = 20 * time.Millisecond
	registerMost  = time.Second
	leaseSeconds  = 40
	renewEvery    = 10 * time.Second
)

// Config is what is reported besides what the machine and the runtime say.
type Config struct {
	Name string
	// Labels and Taints are set when the node is registered.
	Labels map[string]string
	Taints []v1.Taint
	// Addresses are the node's, the preferred family first.
	Addresses []string
	// Port of the kubelet's API.
	Port    int
	MaxPods int
	// RootDir is on the file system that counts as ephemeral storage.
	RootDir string
	// Pressure, if given, returns what the node runs short of; Look is called when that changes.
	Pressure func() []v1.NodeConditionType
	// Unready, if given, returns why a node cannot run pods although its runtime could; Look is
	// called when that changes. The node has no UID before it is registered.
	Unready func(*v1.Node) error
	// PluginNetwork is whether only a network plugin may connect pods.
	PluginNetwork bool
	// Registered, if given, is told of each Node that is made.
	Registered func(*v1.Node)
	// VolumesInUse, if given, returns what must not be detached from the node, sorted; Look is
	// called when that changes. It is told what the API has of that.
	VolumesInUse func(known []v1.UniqueVolumeName) []v1.UniqueVolumeName
	// Reported is then told what the API has of that. It does not wait.
	Reported func([]v1.UniqueVolumeName)
	// Log gets errors and warnings; nil discards them.
	Log *slog.Logger
}

// Reporter reports one node.
type Reporter struct {
	config   Config
	kube     kubernetes.Interface
	runtime  *cri.Client
	get      func() (*v1.Node, error)
	recorder record.EventRecorder
	machine  Machine
	latest   atomic.Pointer[v1.Node]
	unready  atomic.Pointer[error]
	changed  chan struct{}
	// turn has a value while the node is registered: Introduce and Run take turns.
	turn chan struct{}
	// introduced is whether Introduce has registered the node, ready whether it is Ready since.
	introduced, ready bool

	reported time.Time
	rebooted sync.Once // the Event of a reboot
	// inUse is what the API has of the volumes in use, as far as this process knows.
	inUse []v1.UniqueVolumeName
}

// New returns a Reporter. get returns the node as the API has it, from an informer.
func New(c Config, kube kubernetes.Interface, runtime *cri.Client, get func() (*v1.Node, error),
	recorder record.EventRecorder,
) (*Reporter, error) {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	m, err := ReadMachine(c.RootDir)
	if err != nil {
		return nil, err
	}
	r := &Reporter{
		config: c, kube: kube, runtime: runtime, get: get, recorder: recorder, machine: m, changed: make(chan struct{}, 1),
		turn: make(chan struct{}, 1),
	}
	n := r.initial()
	r.fillMachine(n) // static pods are admitted before there is a runtime or an API
	r.latest.Store(n)
	return r, nil
}

// Machine returns what the node's capacity is computed from.
func (r *Reporter) Machine() Machine { return r.machine }

// Node returns the node as it was last registered or reported.
func (r *Reporter) Node() *v1.Node { return r.latest.Load() }

// Allocatable returns what pods can be given.
func (r *Reporter) Allocatable() v1.ResourceList {
	_, allocatable := Resources(r.machine, r.config.MaxPods)
	return allocatable
}

// Err returns why the runtime cannot run pods now, or nil.
func (r *Reporter) Err() error {
	if e := r.unready.Load(); e != nil {
		return *e
	}
	return nil
}

// Look has the status looked at now.
func (r *Reporter) Look() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Introduce registers the node if the API has none of its name and the runtime answers soon. It is
// for the time before Run, or while Run begins, and leaves everything else to that: Run also
// registers a node whose runtime does not answer.
func (r *Reporter) Introduce(ctx context.Context) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-r.turn }()
	if _, err := r.kube.CoreV1().Nodes().Get(ctx, r.config.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return
	}
	asked, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// The call waits for the runtime's socket.
	if _, err := r.runtime.Version(asked); err != nil {
		return
	}
	n := r.initial()
	ready := r.fill(ctx, n)
	if made, err := r.kube.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err == nil {
		r.registered(made, ready)
		r.introduced, r.ready = true, ready
	}
}

// Run registers and reports until ctx ends.
func (r *Reporter) Run(ctx context.Context) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	ready := r.ready
	if !r.introduced {
		ready = r.register(ctx)
	}
	<-r.turn
	if ctx.Err() != nil {
		return
	}
	l := lease.NewController(clock.RealClock{}, r.kube, r.config.Name, leaseSeconds, nil, renewEvery, r.config.Name,
		v1.NamespaceNodeLease, kubeletutil.SetNodeOwnerFunc(ctx, r.kube, r.config.Name))
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	defer func() { <-done }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		_, noPlugin := errors.AsType[*noPluginError](r.Err())
		switch {
		case ready:
			timer.Reset(checkEvery)
		case noPlugin:
			timer.Reset(pluginEvery)
		default:
			timer.Reset(unreadyEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.changed:
		}
		var err error
		if ready, err = r.report(ctx); err != nil && ctx.Err() == nil {
			r.config.Log.Warn("report the node's status", "err", err)
		}
	}
}

// initial is the node as it is registered, without a status.
func (r *Reporter) initial() *v1.Node {
	n := &v1.Node{}
	n.Name = r.config.Name
	n.Labels = defaultLabels(r.config.Name)
	maps.Copy(n.Labels, r.config.Labels)
	n.Annotations = map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
	n.Spec.Taints = r.config.Taints
	return n
}

// register makes the node's object, or brings the labels of one that exists up to date, and returns
// whether the node is ready.
func (r *Reporter) register(ctx context.Context) bool {
	for wait := registerFirst; ctx.Err() == nil; wait = min(2*wait, registerMost) {
		n := r.initial()
		ready := r.fill(ctx, n)
		made, err := r.kube.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		if err == nil {
			r.registered(made, ready)
			return ready
		}
		if apierrors.IsAlreadyExists(err) {
			if err = r.relabel(ctx); err == nil {
				return false // its status is looked at at once
			}
		}
		if ctx.Err() == nil {
			r.config.Log.Warn("node is not registered", "node", n.Name, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return false
}

// registered notes that the node was made.
func (r *Reporter) registered(made *v1.Node, ready bool) {
	r.config.Log.Info("node registered", "node", made.Name, "ready", ready)
	r.latest.Store(made)
	if r.config.Registered != nil {
		r.config.Registered(made)
	}
	r.reported = time.Now()
	r.tell(made.Status.VolumesInUse)
}

// relabel sets the labels that the kubelet owns on an existing node.
func (r *Reporter) relabel(ctx context.Context) error {
	old, err := r.kube.CoreV1().Nodes().Get(ctx, r.config.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	n := old.DeepCopy()
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	maps.Copy(n.Labels, r.initial().Labels)
	if !equality.Semantic.DeepEqual(n.Labels, old.Labels) {
		if n, _, err = nodeutil.PatchNodeStatus(r.kube.CoreV1(), types.NodeName(n.Name), old, n); err != nil {
			return err
		}
	}
	r.latest.Store(n)
	return nil
}

// report brings the node's status up to date, if it changed or was not written for long.
func (r *Reporter) report(ctx context.Context) (ready bool, err error) {
	old, err := r.get()
	// To change the volumes in use, the informer's copy may be older than what was written last.
	stale := r.config.VolumesInUse != nil && !slices.Equal(r.config.VolumesInUse(r.inUse), r.inUse)
	if err != nil || stale { // the informer has not seen it yet, or it was deleted
		old, err = r.kube.CoreV1().Nodes().Get(ctx, r.config.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return r.register(ctx), nil
		}
		if err != nil {
			return false, err
		}
	}
	n := old.DeepCopy()
	ready = r.fill(ctx, n)
	inUse := n.Status.VolumesInUse
	if !differs(&old.Status, &n.Status) && time.Since(r.reported) < reportEvery {
		r.latest.Store(old)
		r.tell(inUse)
		return ready, nil
	}
	n, _, err = nodeutil.PatchNodeStatus(r.kube.CoreV1(), types.NodeName(n.Name), old, n)
	if err != nil {
		return ready, err
	}
	r.reported = time.Now()
	r.latest.Store(n)
	r.tell(inUse)
	return ready, nil
}

// tell passes on which volumes the API knows to be in use.
func (r *Reporter) tell(inUse []v1.UniqueVolumeName) {
	if r.config.Reported != nil {
		r.inUse = inUse
		r.config.Reported(inUse)
	}
}

// differs says whether two statuses differ in more than the time of the last look.
func differs(a, b *v1.NodeStatus) bool {
	still := func(s *v1.NodeStatus) *v1.NodeStatus {
		s = s.DeepCopy()
		for i := range s.Conditions {
			s.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
		return s
	}
	return !equality.Semantic.DeepEqual(still(a), still(b))
}
