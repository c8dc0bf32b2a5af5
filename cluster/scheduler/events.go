package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
)

const (
	// eventWrites is how many events are written at a time at most. More would get in the way of
	// the bindings.
	eventWrites = 8
	// burst is how many pods that are bound within a period make it a burst. Events wait for its end,
	// but for one after each burstPause, unless maxHeld wait: an event costs the API server as much
	// as a binding, and pods wait for bindings only.
	burst      = 50
	period     = 250 * time.Millisecond
	burstPause = 10 * time.Millisecond
	maxHeld    = 10000
	// scheduled is the reason of the event that a pod has been bound, the only one that cannot
	// happen again.
	scheduled = "Scheduled"
)

// eventRetry is upstream's, for events that the API server has not answered for.
var eventRetry = wait.Backoff{Steps: 12, Duration: 10 * time.Second, Jitter: 0.25}

// broadcasts writes events.
//
// Upstream's broadcaster keeps each event for 6 to 12 minutes, to count how often it happens, and
// the room of its table for good. There is an event for each pod that is bound, and it does not
// happen again: these are only written. Else a burst of 5,000 pods would leave some 8 MB behind.
type broadcasts struct {
	repeated events.EventBroadcaster
	once     events.EventBroadcaster
	writer   eventWriter
}

// newBroadcasts returns what writes events to sink.
func newBroadcasts(sink events.EventSink, log *slog.Logger) *broadcasts {
	return &broadcasts{
		repeated: events.NewBroadcaster(newBoundedSink(sink)), once: events.NewBroadcaster(nil),
		writer: eventWriter{log: log, sink: sink},
	}
}

// recorder returns what records events in the name of the scheduler name.
func (b *broadcasts) recorder(name string) events.EventRecorder {
	return recorder{repeated: b.repeated.NewRecorder(scheme.Scheme, name), once: b.once.NewRecorder(scheme.Scheme, name)}
}

// start has events written until ctx ends. The caller calls stop then.
func (b *broadcasts) start(ctx context.Context) error {
	b.writer.ctx = ctx
	_, err := b.once.StartEventWatcher(func(o runtime.Object) {
		if e, ok := o.(*eventsv1.Event); ok {
			b.writer.add(e)
		}
	})
	if err == nil {
		err = b.repeated.StartRecordingToSinkWithContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("record events: %w", err)
	}
	return nil
}

func (b *broadcasts) stop() {
	b.repeated.Shutdown()
	b.once.Shutdown()
	b.writer.stop()
}

type recorder struct{ repeated, once events.EventRecorder }

// Eventf implements events.EventRecorder.
func (r recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	to := r.repeated
	if reason == scheduled {
		to = r.once
	}
	to.Eventf(regarding, related, kind, reason, action, note, args...)
}

// eventWriter writes each event that is added, up to eventWrites at a time, and slowly during a
// burst. It has no goroutines while there are none.
type eventWriter struct {
	log  *slog.Logger
	sink events.EventSink
	ctx  context.Context //nolint:containedctx // of all writes

	running sync.WaitGroup
	mu      sync.Mutex
	queue   []*eventsv1.Event
	writers int
	stopped bool
	// added is how many events have been added since began, and before in the period before that.
	began         time.Time
	added, before int
}

func (w *eventWriter) add(e *eventsv1.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	w.queue = append(w.queue, e)
	w.turnLocked()
	w.added++
	w.growLocked()
}

// turnLocked begins another period when one has passed.
func (w *eventWriter) turnLocked() {
	now := time.Now()
	switch since := now.Sub(w.began); {
	case since < period:
	case since < 2*period:
		w.began, w.added, w.before = w.began.Add(period), 0, w.added
	default:
		w.began, w.added, w.before = now, 0, 0
	}
}

// growLocked starts the writers that are due.
func (w *eventWriter) growLocked() {
	for w.writers < min(w.dueLocked(), len(w.queue)) {
		w.writers++
		w.running.Go(w.write)
	}
}

func (w *eventWriter) dueLocked() int {
	if w.burstLocked() {
		return 1
	}
	return eventWrites
}

// burstLocked says whether there is a burst, and room for the events that have to wait.
func (w *eventWriter) burstLocked() bool {
	w.turnLocked()
	return max(w.added, w.before) >= burst && len(w.queue) < maxHeld
}

// next returns the event to be written next; nil ends a writer.
func (w *eventWriter) next() *eventsv1.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		w.queue = nil
	}
	if len(w.queue) == 0 || w.writers > w.dueLocked() {
		w.writers--
		return nil
	}
	e := w.queue[0]
	w.queue[0] = nil
	w.queue = w.queue[1:]
	w.growLocked() // the burst may be over, which no one tells
	return e
}

func (w *eventWriter) write() {
	for e := w.next(); e != nil; e = w.next() {
		err := wait.ExponentialBackoffWithContext(w.ctx, eventRetry, func(ctx context.Context) (bool, error) {
			_, err := w.sink.Create(ctx, e)
			if status := apierrors.APIStatus(nil); errors.As(err, &status) {
				return false, err // an answer; it would be the same again
			}
			return err == nil, nil
		})
		if err != nil && w.ctx.Err() == nil && !apierrors.IsAlreadyExists(err) {
			w.log.Warn("event is not written", "event", e.Reason, "pod", e.Regarding.Namespace+"/"+e.Regarding.Name, "err", err)
		}
		w.pause()
	}
}

// pause leaves the API server to others during a burst.
func (w *eventWriter) pause() {
	w.mu.Lock()
	due := w.burstLocked()
	w.mu.Unlock()
	if !due {
		return
	}
	select {
	case <-time.After(burstPause):
	case <-w.ctx.Done():
	}
}

// stop waits for writes under way; the context of all has ended.
func (w *eventWriter) stop() {
	w.mu.Lock()
	w.stopped = true
	w.queue = nil
	w.mu.Unlock()
	w.running.Wait()
}

// boundedSink lets only some writes of events run at a time. The broadcaster starts one for each
// event at once.
type boundedSink struct {
	events.EventSink
	places chan struct{}
}

func newBoundedSink(sink events.EventSink) boundedSink {
	return boundedSink{sink, make(chan struct{}, eventWrites)}
}

func (s boundedSink) bounded(write func() (*eventsv1.Event, error)) (*eventsv1.Event, error) {
	s.places <- struct{}{}
	defer func() { <-s.places }()
	return write()
}

// Create writes a new event.
func (s boundedSink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	return s.bounded(func() (*eventsv1.Event, error) { return s.EventSink.Create(ctx, e) })
}

// Patch writes that an event happened again.
func (s boundedSink) Patch(ctx context.Context, e *eventsv1.Event, patch []byte) (*eventsv1.Event, error) {
	return s.bounded(func() (*eventsv1.Event, error) { return s.EventSink.Patch(ctx, e, patch) })
}
