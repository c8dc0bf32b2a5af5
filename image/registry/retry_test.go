package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                              0,
		"7":                             7 * time.Second,
		"0":                             0,
		"-1":                            0,
		"99999999999999999999":          0,
		"soon":                          0,
		"Fri, 02 Jan 2026 03:04:35 GMT": 30 * time.Second,
		"Fri, 02 Jan 2026 03:00:00 GMT": 0,
	} {
		if got := retryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

func TestRetryWaitsAsLongAsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		tries := 0
		err := retry(t.Context(), 3, func() error {
			tries++
			if tries < 3 {
				return &remoteError{kind: ErrUnavailable, transient: true, after: 20 * time.Second}
			}
			return nil
		})
		if err != nil || time.Since(start) != 40*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

func TestRetryBacksOffAndStopsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var at []time.Duration
		err := retry(ctx, 10, func() error {
			at = append(at, time.Since(start))
			return &remoteError{kind: ErrUnavailable, transient: true}
		})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		for i, want := range []time.Duration{0, 100, 300, 700} {
			if at[i] != want*time.Millisecond {
				t.Errorf("try %d at %s, want %d ms", i, at[i], want)
			}
		}
	})
}

// Regression: what a token service said of when to come back was lost.
func TestTooManyTokens(t *testing.T) {
	for after, c := range map[string]struct {
		tries int
		want  string
	}{"0": {2, ""}, "3600": {1, "to the token request; it asks to come back in 1h0m0s"}, "": {2, ""}} {
		f := newFake(t)
		blob := f.has([]byte("blob"))
		tries := 0
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			switch {
			case r.URL.Path == "/token":
				if tries++; tries == 1 {
					w.Header().Set("Retry-After", after)
					w.WriteHeader(http.StatusTooManyRequests)
				} else {
					fmt.Fprint(w, `{"token":"good"}`)
				}
			case r.Header.Get("Authorization") == "Bearer good":
				return false
			default: // also a refusal, which says nothing of when
				challenge(w, `Bearer realm="%s/token",service="s"`, f.URL)
			}
			return true
		}
		_, err := repository(t, client(t, Config{}, "", ""), f.host(), Auth{Username: "u", Password: "p"}).Fetch(t.Context(), blob)
		if tries != c.tries || c.want == "" && err != nil ||
			c.want != "" && (!errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("Retry-After %q: %d tries, %v", after, tries, err)
		}
	}
}

func TestTooManyRequests(t *testing.T) {
	for _, c := range []struct {
		after string
		tries int
		want  string
	}{{"0", 2, ""}, {"3600", 1, "asks to come back in 1h0m0s"}} {
		f := newFake(t)
		blob := f.has([]byte("blob"))
		tries := 0
		f.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
			if tries++; tries > 1 {
				return false
			}
			w.Header().Set("Retry-After", c.after)
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		_, err := repository(t, client(t, Config{}, "", ""), f.host(), Auth{}).Fetch(t.Context(), blob)
		if tries != c.tries || c.want == "" && err != nil ||
			c.want != "" && (!errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("Retry-After %s: %d tries, %v", c.after, tries, err)
		}
	}
}

// A registry that keeps answering without ever sending anything is given up.
func TestPatienceEnds(t *testing.T) {
	f := newFake(t)
	blob := f.has([]byte("blob"))
	f.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	c := client(t, Config{ProgressTimeout: 50 * time.Millisecond}, "", "")
	for what, do := range map[string]func(*Repository) error{
		"document": func(r *Repository) error { _, err := r.Fetch(t.Context(), blob); return err },
		"blob":     func(r *Repository) error { return r.Blob(t.Context(), blob, &memory{}, ignore) },
		"range":    func(r *Repository) error { _, err := r.Range(t.Context(), blob, 0, 1, nil); return err },
	} {
		err := do(repository(t, c, f.host(), Auth{}))
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "no byte of") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What breaks off now and then is taken up again for as long as it gets on.
func TestEffort(t *testing.T) {
	e := effort{mark: 100}
	for i := range 1000 {
		if n := e.failed(100 + int64(i+1)*blobStep); n != 1 {
			t.Fatalf("break %d, with some bytes each time, is number %d", i, n)
		}
	}
	e = effort{}
	for i := range blobStuck {
		if n := e.failed(int64(i)); n != i+1 { // a byte each time
			t.Fatalf("break %d of one that drips is number %d", i, n)
		}
	}
	if mostTries(false) >= mostTries(true) {
		t.Error("a host that sent something has no more tries than one that did not")
	}
}

// More breaks than a host that sends nothing is forgiven, each after some bytes.
func TestBrokenOften(t *testing.T) {
	f := newFake(t)
	data := large()[:(blobTries+2)*blobStep]
	d := f.has(data)
	breaks := 0
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if breaks++; breaks > blobTries+1 {
			return false
		}
		var at int64 // no header: from the first byte
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &at)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", at, d.Size-1, d.Size))
		w.Header().Set("Content-Length", fmt.Sprint(d.Size-at))
		if at > 0 {
			w.WriteHeader(http.StatusPartialContent)
		}
		_, _ = w.Write(data[at:min(at+blobStep, d.Size)])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	fetch(t, repository(t, client(t, Config{}, "", ""), f.host(), Auth{}), d, data)
	if breaks < blobTries+2 {
		t.Errorf("%d requests", breaks)
	}
}
