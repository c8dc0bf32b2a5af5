package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"
)

func TestRange(t *testing.T) {
	f := newFake(t)
	data := bytes.Repeat([]byte("0123456789"), 1000)
	d := f.has(data)
	r := repository(t, client(t, Config{}, "", ""), f.host(), Auth{})
	for _, at := range []int64{0, 1, 5000, 9990} {
		got, err := r.Range(t.Context(), d, at, 10, nil)
		if err != nil || !bytes.Equal(got, data[at:at+10]) {
			t.Errorf("from %d on: %q, %v", at, got, err)
		}
	}
	if got, err := r.Range(t.Context(), d, 0, d.Size, nil); err != nil || !bytes.Equal(got, data) {
		t.Errorf("all: %d bytes, %v", len(got), err)
	}
	for _, bad := range [][2]int64{{-1, 10}, {0, 0}, {9991, 10}, {0, 10001}} {
		if _, err := r.Range(t.Context(), d, bad[0], bad[1], nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// A registry that sends all of a blob is no use to someone who wants a part.
func TestRangeIgnored(t *testing.T) {
	f := newFake(t)
	data := make([]byte, 1000)
	d := f.has(data)
	f.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write(data)
		return true
	}
	r := repository(t, client(t, Config{}, "", ""), f.host(), Auth{})
	for _, at := range []int64{0, 10} {
		if _, err := r.Range(t.Context(), d, at, 10, nil); !errors.Is(err, ErrNoRanges) {
			t.Errorf("from %d on: %v", at, err)
		}
	}
}

// It is not waited for what comes before the part.
func TestRangeIgnoredByLargeBlob(t *testing.T) {
	f := newFake(t)
	d := f.has(make([]byte, 1000))
	gone := make(chan struct{})
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write(make([]byte, 500))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // the rest never comes
		close(gone)
		return true
	}
	r := repository(t, client(t, Config{}, "", ""), f.host(), Auth{})
	if _, err := r.Range(t.Context(), d, 900, 10, nil); !errors.Is(err, ErrNoRanges) {
		t.Error(err)
	}
	<-gone
}

// What the caller finds wrong is asked for from the next host, and the first not any more.
func TestRangeOfLyingMirror(t *testing.T) {
	mirror, f := newFake(t), newFake(t)
	d := f.has([]byte("0123456789"))
	mirror.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 2-4/%d", d.Size))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write([]byte("xxx"))
		return true
	}
	c := client(t, Config{Settings: map[string]Settings{f.host(): {PlainHTTP: true, Mirrors: []string{"http://" + mirror.host()}}}}, "", "")
	r := repository(t, c, f.host(), Auth{})
	wrong := errors.New("wrong")
	check := func(p []byte) error {
		if string(p) != "234" {
			return wrong
		}
		return nil
	}
	for range 2 {
		if got, err := r.Range(t.Context(), d, 2, 3, check); err != nil || string(got) != "234" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if n := len(mirror.asked()); n != 1 {
		t.Errorf("the mirror was asked %d times", n)
	}
	if _, err := r.Range(t.Context(), d, 3, 3, check); !errors.Is(err, wrong) {
		t.Errorf("when all hosts are wrong: %v", err)
	}
}

// The context's deadline counts, however silent the registry is.
func TestRangeDeadline(t *testing.T) {
	f := newFake(t)
	d := f.has(make([]byte, 100))
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done()
		return true
	}
	r := repository(t, client(t, Config{}, "", ""), f.host(), Auth{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := r.Range(ctx, d, 0, 10, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
