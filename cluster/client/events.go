package client

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

const (
	// manyEvents and calm: what is remembered to join events that are alike is forgotten when many
	// have been written, and then none for calm.
	manyEvents = 256
	calm       = 2 * time.Minute
)

// Recorder returns what writes events in the name of component, and the function that flushes and
// stops it.
func (s *Set) Recorder(component, host string) (record.EventRecorder, func()) {
	// What is kept to join events that are alike; by default it is of 4,096 objects, several
	// megabytes after a burst.
	alike := record.CorrelatorOptions{LRUCacheSize: 512}
	b := record.NewBroadcaster(record.WithSleepDuration(time.Second), record.WithCorrelatorOptions(alike))
	w := newEventWriter(b, &typedcorev1.EventSinkImpl{Interface: s.Kube.CoreV1().Events("")})
	return b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: host}), func() {
		w.stop()
		b.Shutdown()
	}
}

// eventWriter writes a broadcaster's events.
//
// To join events that are alike, upstream remembers some twenty small things of each. After a burst
// they would stay until other events take their place. What was freed around them could not be
// given back to the kernel: a megabyte of them keeps ten. So it starts over when a burst is over.
type eventWriter struct {
	broadcaster record.EventBroadcaster
	sink        record.EventSink

	mu      sync.Mutex
	current watch.Interface // what the memory belongs to
	written int             // since current was started
	over    *time.Timer     // nil before there were many
	stopped bool
}

func newEventWriter(b record.EventBroadcaster, sink record.EventSink) *eventWriter {
	w := &eventWriter{broadcaster: b, sink: sink}
	w.current = b.StartRecordingToSink(w)
	return w
}

func (w *eventWriter) count() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written++
	switch {
	case w.written < manyEvents || w.stopped:
	case w.over == nil:
		w.over = time.AfterFunc(calm, w.startOver)
	default:
		w.over.Reset(calm)
	}
}

// startOver forgets. An event that comes at this moment may be written twice; none is lost.
func (w *eventWriter) startOver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	old := w.current
	w.current, w.written = w.broadcaster.StartRecordingToSink(w), 0
	old.Stop()
}

func (w *eventWriter) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.over != nil {
		w.over.Stop()
	}
}

// Create implements record.EventSink, as do Update and Patch.
func (w *eventWriter) Create(e *corev1.Event) (*corev1.Event, error) {
	w.count()
	return w.sink.Create(e)
}

// Update implements record.EventSink.
func (w *eventWriter) Update(e *corev1.Event) (*corev1.Event, error) {
	w.count()
	return w.sink.Update(e)
}

// Patch implements record.EventSink.
func (w *eventWriter) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	w.count()
	return w.sink.Patch(e, patch)
}
