package status

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	"github.com/coracle-project/coracle/cluster/internal/mergepatch"
)

const (
	// patience is how long a status waits that says only that a pod is being made, or that its
	// deletion was seen: mostly a better one follows within it, and the API is spared a write. Pods
	// that start or end together take several tenths of a second.
	patience = 500 * time.Millisecond
	// retryAfter is how long after a failed write the next one is tried, and it doubles up to
	// retryMost.
	retryAfter = 100 * time.Millisecond
	retryMost  = 10 * time.Second
)

// Writer brings statuses to the API. Of each pod the newest is kept; while one is being written,
// those that follow replace each other. A pod costs a goroutine only while something is to be
// written. A write that fails is tried again until it succeeds or the pod is gone.
type Writer struct {
	log  *slog.Logger
	kube kubernetes.Interface
	ctx  context.Context
	wg   sync.WaitGroup

	mu   sync.Mutex
	pods map[types.UID]*entry // by the UID of the pod that runs, which for a static pod is not the API object's
}

// entry is one pod's way to the API.
type entry struct {
	object  *v1.Pod // newest known object in the API; nil for a static pod without a mirror
	want    *v1.PodStatus
	over    bool // all is gone from the node: the object may be deleted
	running bool // some container may still run: no final phase yet
	busy    bool // a goroutine is writing
	urgent  chan struct{}
	deleted bool
}

// NewWriter returns a Writer that works until ctx ends; Wait then waits for what is under way.
func NewWriter(ctx context.Context, kube kubernetes.Interface, log *slog.Logger) *Writer {
	return &Writer{log: log, kube: kube, ctx: ctx, pods: map[types.UID]*entry{}}
}

// Wait returns when no write is under way. Call it when the context has ended.
func (w *Writer) Wait() { w.wg.Wait() }

// Object tells the newest object that the API has for the pod with this UID, a static pod's mirror
// included. If it says something else than what is wanted, that is written again.
func (w *Writer) Object(uid types.UID, object *v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entry(uid)
	if e.object != nil && e.object.UID == object.UID && older(object, e.object) {
		return
	}
	if e.object != nil && e.object.UID != object.UID {
		e.deleted = false
	}
	e.object = object
	if e.want != nil {
		w.kick(uid, e)
	}
}

// Set asks for a status to be written. running says that a container of the pod may still run: a
// final phase is then held back until a later call says otherwise. over says that nothing of the
// pod is left on the node.
func (w *Writer) Set(uid types.UID, s v1.PodStatus, running, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entry(uid)
	e.want, e.running, e.over = s.DeepCopy(), running, e.over || over
	w.kick(uid, e)
}

// Forget drops what is known of a pod that is no longer this node's.
func (w *Writer) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

func (w *Writer) entry(uid types.UID) *entry {
	e, ok := w.pods[uid]
	if !ok {
		e = &entry{urgent: make(chan struct{}, 1)}
		w.pods[uid] = e
	}
	return e
}

// fresh says whether a status tells no more than that the pod is being made.
func fresh(s *v1.PodStatus) bool {
	if s.Phase != v1.PodPending || s.Reason != "" {
		return false
	}
	for _, all := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range all {
			w := all[i].State.Waiting
			if w == nil || w.Reason != containerCreating && w.Reason != podInitializing {
				return false
			}
		}
	}
	return true
}

// canWait says whether a better status is likely to follow within patience, and nothing but that
// waits for it.
func (e *entry) canWait() bool {
	if e.over || fresh(e.want) {
		return !e.over
	}
	return e.object != nil && e.object.DeletionTimestamp != nil && e.running && onlyObserved(e.object.Status, merged(e.object, e))
}

// onlyObserved says whether two statuses differ in nothing but the generation that they are of.
func onlyObserved(a, b v1.PodStatus) bool {
	of := func(s v1.PodStatus) v1.PodStatus {
		s.ObservedGeneration, s.Conditions = 0, slices.Clone(s.Conditions)
		for i := range s.Conditions {
			s.Conditions[i].ObservedGeneration = 0
		}
		return s
	}
	return same(of(a), of(b))
}

// kick starts a writer for the pod if there is none and something is to be written.
func (w *Writer) kick(uid types.UID, e *entry) {
	if !e.canWait() {
		select {
		case e.urgent <- struct{}{}:
		default:
		}
	}
	if e.busy || e.object == nil || e.deleted || w.ctx.Err() != nil {
		return
	}
	if base := e.object; !e.deletable() && same(merged(base, e), base.Status) {
		return
	}
	e.busy = true
	w.wg.Go(func() { w.write(uid, e) })
}

// write brings the newest status to the API until there is nothing new.
func (w *Writer) write(uid types.UID, e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { e.busy = false }()
	select {
	case <-e.urgent: // of what was there already
	default:
	}
	wait, delay := time.Duration(0), retryAfter
	if e.canWait() {
		wait = patience
	}
	for {
		if wait > 0 {
			w.mu.Unlock()
			ended := !w.pause(e, wait)
			w.mu.Lock()
			if ended {
				return
			}
		}
		select {
		case <-e.urgent:
		default:
		}
		if w.pods[uid] != e || e.object == nil {
			return
		}
		base, want, remove := e.object, merged(e.object, e), e.deletable()
		if same(want, base.Status) && !remove {
			return
		}
		w.mu.Unlock()
		object, gone, err := w.send(base, want, remove)
		w.mu.Lock()
		switch {
		case gone:
			e.deleted = true
			return
		case err != nil:
			if w.ctx.Err() != nil {
				return
			}
			w.log.Warn("write a pod's status", "pod", base.Namespace+"/"+base.Name, "err", err)
			wait = delay
			delay = min(2*delay, retryMost)
			continue
		}
		if unchanged(base, object) {
			wait = delay
			delay = min(2*delay, retryMost)
		} else {
			wait, delay = 0, retryAfter
		}
		if object != nil && e.object.UID == object.UID && !older(object, e.object) {
			e.object = object
		}
		if e.canWait() && !same(merged(e.object, e), e.object.Status) {
			wait = patience
		}
	}
}

// unchanged says that the API took a status and kept the one that it had: the same once more would
// change nothing either.
func unchanged(before, after *v1.Pod) bool { return after != nil && same(after.Status, before.Status) }

// pause waits for d, or until something that cannot wait is to be written.
func (w *Writer) pause(e *entry, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-w.ctx.Done():
		return false
	case <-e.urgent:
	case <-t.C:
	}
	return true
}

// send writes a status and, if that is due, deletes the object. gone says that there is no object
// with this UID any more.
func (w *Writer) send(base *v1.Pod, want v1.PodStatus, remove bool) (object *v1.Pod, gone bool, err error) {
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	if !same(want, base.Status) {
		if object, err = w.patch(ctx, base, want); err != nil {
			gone, err = w.lost(ctx, base, err)
			return nil, gone, err
		}
	}
	if !remove {
		return object, false, nil
	}
	now := int64(0)
	err = w.kube.CoreV1().Pods(base.Namespace).Delete(ctx, base.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(base.UID)),
	})
	if err == nil {
		return object, true, nil
	}
	gone, err = w.lost(ctx, base, err)
	return object, gone, err
}

// patch sends the difference between the object's status and the wanted one.
func (w *Writer) patch(ctx context.Context, base *v1.Pod, want v1.PodStatus) (*v1.Pod, error) {
	patch, err := mergepatch.PodStatus(base, &want)
	if err != nil {
		return nil, err
	}
	return w.kube.CoreV1().Pods(base.Namespace).Patch(ctx, base.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

// lost says whether a write failed because the object is gone, or another has taken its name; if
// not, it returns the error. A conflict alone does not tell: the API answers so for other reasons,
// too, such as when others write the object all the time. Another pod of that name makes the patch
// invalid if it is on this node, and forbidden if not.
func (w *Writer) lost(ctx context.Context, base *v1.Pod, err error) (bool, error) {
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
		return false, err
	}
	now, getErr := w.kube.CoreV1().Pods(base.Namespace).Get(ctx, base.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(getErr) || getErr == nil && now.UID != base.UID {
		return true, nil
	}
	return false, errors.Join(err, getErr)
}

// deletable says whether the API's object may go: it was asked to, its phase is final, and nothing
// of it is left here. A mirror goes with its static pod's file.
func (e *entry) deletable() bool {
	return e.over && e.object != nil && e.object.DeletionTimestamp != nil && !kubetypes.IsMirrorPod(e.object) &&
		(podutil.IsPodPhaseTerminal(e.object.Status.Phase) || podutil.IsPodPhaseTerminal(e.want.Phase))
}

// older says whether object a is from before b.
func older(a, b *v1.Pod) bool {
	c, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && c < 0
}

// same says whether two statuses differ in nothing that the kubelet owns.
func same(a, b v1.PodStatus) bool { return equality.Semantic.DeepEqual(a, b) }
