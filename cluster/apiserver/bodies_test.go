package apiserver

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// deadlined is a response of a connection that has deadlines.
type deadlined struct {
	*httptest.ResponseRecorder
	deadlines []time.Time
}

func (d *deadlined) SetReadDeadline(t time.Time) error {
	d.deadlines = append(d.deadlines, t)
	return nil
}

func answerTimed(read func(body io.Reader)) *deadlined {
	w := &deadlined{ResponseRecorder: httptest.NewRecorder()}
	next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { read(r.Body) })
	handler := withBodyDeadline(next, time.Minute, &request.RequestInfoFactory{APIPrefixes: sets.NewString("api")},
		func(*http.Request, *request.RequestInfo) bool { return false })
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/api/v1/namespaces", strings.NewReader("{}")))
	return w
}

func TestDeadlineEndsWithTheBody(t *testing.T) {
	w := answerTimed(func(body io.Reader) { _, _ = io.Copy(io.Discard, body) })
	if len(w.deadlines) != 2 || w.deadlines[0].IsZero() || !w.deadlines[1].IsZero() {
		t.Errorf("deadlines were %v, not one and none", w.deadlines)
	}
}

// Regression: a handler that still read the body when its request had been answered, because it
// took too long, changed the deadline of a connection that was another's. With HTTP/2 it panicked.
func TestBodyReadAfterItsRequestLeavesTheConnectionAlone(t *testing.T) {
	var late io.Reader
	w := answerTimed(func(body io.Reader) { late = body })
	if _, err := io.Copy(io.Discard, late); err != nil {
		t.Fatal(err)
	}
	if len(w.deadlines) != 1 {
		t.Errorf("the deadline was set %d times, not once", len(w.deadlines))
	}
}
