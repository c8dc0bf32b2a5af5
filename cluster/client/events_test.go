package client

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
	"weak"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// sink remembers what was done, by message.
type sink struct {
	record.EventSink
	mu   sync.Mutex
	did  []string
	last weak.Pointer[byte] // the name of the last event made, which is remembered for patches of it
}

func (s *sink) Create(e *corev1.Event) (*corev1.Event, error) {
	s.last = weak.Make(unsafe.StringData(e.Name))
	return e, s.note("create " + e.Message)
}

func (s *sink) Patch(e *corev1.Event, _ []byte) (*corev1.Event, error) {
	return e, s.note(fmt.Sprintf("%s x%d", e.Message, e.Count))
}

func (s *sink) note(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did = append(s.did, what)
	return nil
}

// take returns what was done since the last call.
func (s *sink) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	did := s.did
	s.did = nil
	return did
}

func pod(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "default", Name: name}
}

// What is remembered of events is forgotten after a burst of them, and only then. None is lost by
// that.
func TestForgetsEventsAfterBurst(t *testing.T) {
	for _, burst := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := record.NewBroadcaster()
			s := &sink{}
			w := newEventWriter(b, s)
			r := b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "test"})
			write := func(name, message string) {
				r.Event(pod(name), corev1.EventTypeNormal, "Reason", message)
				synctest.Wait()
			}
			n := 1
			if burst {
				n = manyEvents
			}
			for i := range n - 1 {
				write(fmt.Sprint("pod-", i), "once")
				time.Sleep(calm / 2) // a slow burst is one, too
			}
			write("last", "twice")
			write("last", "twice")
			if did := s.take(); len(did) != n+1 || !slices.Equal(did[n-1:], []string{"create twice", "twice x2"}) {
				t.Errorf("burst %v: wrote %d, want %d; the last %q", burst, len(did), n+1, did[max(0, len(did)-2):])
			}
			time.Sleep(calm + time.Second)
			synctest.Wait()
			runtime.GC()
			if got := s.last.Value() != nil; got == burst {
				t.Errorf("burst %v: kept %v", burst, got)
			}
			write("another", "again")
			write("another", "again")
			if did, want := s.take(), []string{"create again", "again x2"}; !slices.Equal(did, want) {
				t.Errorf("burst %v: wrote %q, want %q", burst, did, want)
			}
			w.stop()
			b.Shutdown()
		})
	}
}

// Nothing is started again by what is written while it ends.
func TestStopsWithManyEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := record.NewBroadcaster()
		s := &sink{}
		w := newEventWriter(b, s)
		r := b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "test"})
		for i := range 2 * manyEvents {
			r.Event(pod(fmt.Sprint(i)), corev1.EventTypeNormal, "Reason", "message")
			synctest.Wait()
		}
		before := w.current
		w.stop()
		w.count()
		w.startOver() // its timer went off just before
		b.Shutdown()
		time.Sleep(time.Hour)
		if w.current != before {
			t.Error("it started over after its end")
		}
		if len(s.take()) != 2*manyEvents {
			t.Error("not all were written")
		}
	})
}
