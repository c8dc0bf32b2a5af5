package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
	"weak"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
)

// fakeSink counts what is written at a time, and keeps notes only.
type fakeSink struct {
	events.EventSink
	fail func(note string) error
	took time.Duration

	mu         sync.Mutex
	now, most  int
	tried, did []string
}

func (s *fakeSink) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	note := fmt.Sprint(e.Reason, " ", e.Note)
	s.mu.Lock()
	s.tried = append(s.tried, note)
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	time.Sleep(s.took)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	if s.fail != nil {
		if err := s.fail(note); err != nil {
			return nil, err
		}
	}
	s.did = append(s.did, note)
	return e, nil
}

// counts returns how many events were written, and how many at a time at most since it was asked
// last.
func (s *fakeSink) counts() (did, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most, s.most = s.most, s.now
	return len(s.did), most
}

// record starts what writes events to sink, and returns what records them and what stops it.
func record(t *testing.T, sink events.EventSink) (events.EventRecorder, func()) {
	t.Helper()
	b := newBroadcasts(sink, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	if err := b.start(ctx); err != nil {
		t.Fatal(err)
	}
	return b.recorder("test"), func() {
		cancel()
		b.stop()
	}
}

func podNamed(name string) *v1.Pod {
	return &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
	}
}

// The event that a pod has been bound is written and not kept: it does not happen again. An event
// that may is kept for a while, to be counted.
func TestKeepsOnlyEventsThatMayHappenAgain(t *testing.T) {
	for reason, keeps := range map[string]bool{scheduled: false, "FailedScheduling": true} {
		synctest.Test(t, func(t *testing.T) {
			sink := &fakeSink{}
			recorder, stop := record(t, sink)
			defer stop()
			pod := podNamed(fmt.Sprintf("a-pod-with-a-name-of-its-own-%d", len(reason)))
			name := weak.Make(unsafe.StringData(pod.Name)) // every copy of the event refers to it
			recorder.Eventf(pod, nil, v1.EventTypeNormal, reason, "Binding", "note")
			pod = nil
			synctest.Wait()
			if want := []string{reason + " note"}; !slices.Equal(sink.did, want) {
				t.Fatalf("wrote %q, want %q", sink.did, want)
			}
			goruntime.GC()
			if kept := name.Value() != nil; kept != keeps {
				t.Errorf("%s: kept %v, want %v", reason, kept, keeps)
			}
		})
	}
}

// However many pods are bound at once, each has its event, and few are written at a time.
func TestWritesAllEventsFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &fakeSink{took: time.Millisecond}
		recorder, stop := record(t, sink)
		defer stop()
		const n = 3000
		for i := range n {
			recorder.Eventf(podNamed(fmt.Sprint(i)), nil, v1.EventTypeNormal, scheduled, "Binding", "%d", i)
			synctest.Wait() // the broadcaster drops what comes faster than it can pass on
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(sink.did) != n || sink.most != eventWrites {
			t.Errorf("wrote %d of %d events, %d at a time; want %d", len(sink.did), n, sink.most, eventWrites)
		}
	})
}

// An event that the API server could not be asked to write is tried again; one that it refused is
// not.
func TestRetriesEventsWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("connection refused")
		sink := &fakeSink{fail: func(note string) error {
			if note == "Scheduled refused" {
				return apierrors.NewForbidden(v1.Resource("events"), "x", errors.New("no"))
			}
			return down
		}}
		recorder, stop := record(t, sink)
		for _, note := range []string{"refused", "late"} {
			recorder.Eventf(podNamed(note), nil, v1.EventTypeNormal, scheduled, "Binding", note)
		}
		time.Sleep(15 * time.Second)
		sink.mu.Lock()
		down = nil
		sink.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{"Scheduled late"}; !slices.Equal(sink.did, want) {
			t.Errorf("wrote %q, want %q", sink.did, want)
		}
		if len(sink.tried) != 4 { // refused; late at 0, 10 to 12.5 and 20 to 25 seconds
			t.Errorf("tried %q", sink.tried)
		}
		stop()
		recorder.Eventf(podNamed("after"), nil, v1.EventTypeNormal, scheduled, "Binding", "after")
		synctest.Wait()
		if slices.Contains(sink.tried, "Scheduled after") {
			t.Error("an event was written after the end")
		}
	})
}

// Events of a burst wait for its end, but for a few, as long as not too many wait.
func TestEventsWaitForTheEndOfABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &fakeSink{took: time.Millisecond}
		recorder, stop := record(t, sink)
		defer stop()
		event := func(i int) {
			recorder.Eventf(podNamed(fmt.Sprint(i)), nil, v1.EventTypeNormal, scheduled, "Binding", "%d", i)
			synctest.Wait()
		}
		for i := range burst - 1 { // no burst
			event(i)
		}
		time.Sleep(period)
		synctest.Wait()
		if did, most := sink.counts(); did != burst-1 || most != eventWrites {
			t.Errorf("wrote %d of %d events in a period, %d at a time", did, burst-1, most)
		}
		const periods, each = 10, 2 * burst
		part := func() (did, most int) { // a part of the burst
			for i := range each {
				event(i)
			}
			time.Sleep(period)
			synctest.Wait()
			return sink.counts()
		}
		part() // it begins with as many at a time as before
		did := 0
		for range periods - 1 {
			var most int
			if did, most = part(); most != 1 {
				t.Errorf("wrote %d events at a time during the burst", most)
			}
		}
		if did -= burst - 1; did < 2*periods || did > periods*int(period/burstPause)+eventWrites {
			t.Errorf("wrote %d of %d events during the burst", did, periods*each)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if did, most := sink.counts(); most != eventWrites || did != burst-1+periods*each {
			t.Errorf("wrote %d of %d events after the burst, %d at a time", did, burst-1+periods*each, most)
		}
		// What is held is bounded.
		part()
		if _, most := part(); most != 1 {
			t.Errorf("wrote %d events at a time during another burst", most)
		}
		for i := range maxHeld + 20*eventWrites {
			event(i)
		}
		time.Sleep(burstPause) // of the one writer
		synctest.Wait()
		if _, most := sink.counts(); most != eventWrites {
			t.Errorf("with %d events held, %d are written at a time", maxHeld, most)
		}
	})
}
