// Package nodepatch writes Nodes for several controllers. When many nodes join, each controller has
// something to write to each of them at about the same time: labels and taints, networks for pods,
// an annotation. A Writer sends what they write to one node as one patch. Each request costs the
// API server about a millisecond of a processor, and each change of a Node as much again in all
// that watch it.
package nodepatch

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

const (
	// window is how long a change waits for others of its node, while many nodes are written.
	window = 20 * time.Millisecond
	// patientWindow is the same for changes that nothing waits for. Alone they would come first, and
	// a change that names the version would have to be repeated.
	patientWindow = 200 * time.Millisecond
	// Nodes are many when so many requests were sent within busyPeriod. What is written to a node
	// that joins alone does not wait.
	busyRequests = 8
	busyPeriod   = time.Second
)

var errPanicked = errors.New("the request for several controllers panicked")

// Change is what is to be set in a Node. What is empty stays as it is. Of two changes of the same
// field that are made at once, either may be made last.
type Change struct {
	// UID is the only Node of its name that may be changed, if it is not empty.
	UID types.UID
	// ResourceVersion is the only version of the Node that may be changed, if it is not empty.
	ResourceVersion     string
	Labels, Annotations map[string]string
	// Taints replaces all taints, if it is not nil.
	Taints *[]corev1.Taint
	// PodCIDRs can be set once.
	PodCIDRs []string
	// Patient is whether nothing waits for the change.
	Patient bool
}

// Writer sends changes with one client. Its methods are safe for concurrent use.
type Writer struct {
	nodes typedcorev1.NodeInterface

	mu      sync.Mutex
	waiting map[string]*request // by the node's name
	sent    [busyRequests]time.Time
	next    int // index into sent
}

// request is one patch, of one or more changes.
type request struct {
	change  Change
	changes int
	hurry   chan struct{} // gets one element when a change joins that is not patient
	done    chan struct{} // closed when err is set
	err     error
}

// New returns a Writer that writes as the user of nodes.
func New(nodes typedcorev1.NodeInterface) *Writer {
	return &Writer{nodes: nodes, waiting: map[string]*request{}}
}

// Apply makes a change of the named Node, and returns when it is made. The error is the API
// server's: a change that was refused together with others was tried alone, too, unless it is of a
// version that the Node no longer has.
func (w *Writer) Apply(ctx context.Context, name string, c Change) error {
	w.mu.Lock()
	if r := w.waiting[name]; r != nil && r.change.join(c) {
		r.changes++
		if !c.Patient {
			select {
			case r.hurry <- struct{}{}:
			default:
			}
		}
		w.mu.Unlock()
		select {
		case <-r.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return w.alone(ctx, name, c, r)
	}
	r := &request{change: c, changes: 1, hurry: make(chan struct{}, 1), done: make(chan struct{})}
	if !w.busyLocked(time.Now()) {
		w.mu.Unlock()
		return w.send(ctx, name, c)
	}
	w.waiting[name] = r
	w.mu.Unlock()
	r.wait(ctx, c.Patient)
	w.mu.Lock()
	if w.waiting[name] == r {
		delete(w.waiting, name)
	}
	w.mu.Unlock()
	w.finish(ctx, name, r)
	return w.alone(ctx, name, c, r)
}

// finish sends a request. A controller that panics goes on with its next key, so the others that
// wait for the request are told even then.
func (w *Writer) finish(ctx context.Context, name string, r *request) {
	r.err = errPanicked
	defer close(r.done)
	r.err = w.send(ctx, name, r.change)
}

// wait returns when no more changes are waited for.
func (r *request) wait(ctx context.Context, patient bool) {
	timer := time.NewTimer(window)
	defer timer.Stop()
	if patient {
		timer.Reset(patientWindow)
	}
	for {
		select {
		case <-timer.C:
			return
		case <-ctx.Done(): // the others try alone
			return
		case <-r.hurry:
			if patient {
				timer.Reset(window)
				patient = false
			}
		}
	}
}

// alone sends a change again if the request failed that had others in it, too.
func (w *Writer) alone(ctx context.Context, name string, c Change, r *request) error {
	old := c.ResourceVersion != "" && apierrors.IsConflict(r.err)
	if r.err == nil || r.changes == 1 || old || ctx.Err() != nil {
		return r.err
	}
	return w.send(ctx, name, c)
}

// busyLocked notes that a request is sent, and says whether many are.
func (w *Writer) busyLocked(now time.Time) bool {
	busy := now.Sub(w.sent[w.next]) < busyPeriod
	w.sent[w.next] = now
	w.next = (w.next + 1) % len(w.sent)
	return busy
}

func (w *Writer) send(ctx context.Context, name string, c Change) error {
	patch, err := c.patch()
	if err != nil {
		return err
	}
	_, err = w.nodes.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// join adds what other sets to c, unless both set the same field.
func (c *Change) join(other Change) bool {
	if c.ResourceVersion != "" && other.ResourceVersion != "" || c.UID != "" && other.UID != "" && c.UID != other.UID ||
		c.Taints != nil && other.Taints != nil || c.PodCIDRs != nil && other.PodCIDRs != nil ||
		overlap(c.Labels, other.Labels) || overlap(c.Annotations, other.Annotations) {
		return false
	}
	if other.ResourceVersion != "" {
		c.ResourceVersion = other.ResourceVersion
	}
	if other.UID != "" {
		c.UID = other.UID
	}
	if other.Taints != nil {
		c.Taints = other.Taints
	}
	if other.PodCIDRs != nil {
		c.PodCIDRs = other.PodCIDRs
	}
	c.Labels, c.Annotations = union(c.Labels, other.Labels), union(c.Annotations, other.Annotations)
	return true
}

func overlap(a, b map[string]string) bool {
	for key := range a {
		if _, both := b[key]; both {
			return true
		}
	}
	return false
}

// union returns a map of its own: a and b are their callers'.
func union(a, b map[string]string) map[string]string {
	if len(b) == 0 {
		return a
	}
	all := maps.Clone(b)
	maps.Copy(all, a)
	return all
}

// patch is a JSON merge patch.
func (c *Change) patch() ([]byte, error) {
	var p struct {
		Metadata struct {
			UID             types.UID         `json:"uid,omitempty"`
			ResourceVersion string            `json:"resourceVersion,omitempty"`
			Labels          map[string]string `json:"labels,omitempty"`
			Annotations     map[string]string `json:"annotations,omitempty"`
		} `json:"metadata"`
		Spec struct {
			Taints   *[]corev1.Taint `json:"taints,omitempty"`
			PodCIDR  string          `json:"podCIDR,omitempty"`
			PodCIDRs []string        `json:"podCIDRs,omitempty"`
		} `json:"spec"`
	}
	p.Metadata.UID, p.Metadata.ResourceVersion = c.UID, c.ResourceVersion
	p.Metadata.Labels, p.Metadata.Annotations = c.Labels, c.Annotations
	p.Spec.Taints, p.Spec.PodCIDRs = c.Taints, c.PodCIDRs
	if len(c.PodCIDRs) > 0 {
		p.Spec.PodCIDR = c.PodCIDRs[0]
	}
	return json.Marshal(p)
}
