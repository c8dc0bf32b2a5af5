package inproc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// try runs test with a client of handler in a bubble, which fails when a goroutine is left.
func try(t *testing.T, handler http.HandlerFunc, test func(t *testing.T, client *http.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, &http.Client{Transport: Transport(handler, slog.New(slog.DiscardHandler))})
	})
}

func get(t *testing.T, ctx context.Context, client *http.Client) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://inside/path?q=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	return client.Do(req)
}

func TestRequestAndResponse(t *testing.T) {
	try(t, func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil || r.RequestURI != "/path?q=1" || r.Host != "inside" || r.Header.Get("X") != "y" {
			t.Errorf("server saw %s %s %v, %v", r.Host, r.RequestURI, r.Header, err)
		}
		w.Header().Set("Seen", string(data))
		w.WriteHeader(http.StatusTeapot)
		w.Header().Set("Late", "is not sent")
		_, _ = io.WriteString(w, "short and stout")
	}, func(t *testing.T, client *http.Client) {
		req, _ := http.NewRequest(http.MethodPost, "http://inside/path?q=1", strings.NewReader("in"))
		req.Header.Set("X", "y")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		if err != nil || string(data) != "short and stout" || resp.StatusCode != 418 || resp.ContentLength != 15 {
			t.Errorf("%d %q (%d bytes), %v", resp.StatusCode, data, resp.ContentLength, err)
		}
		if resp.Header.Get("Seen") != "in" || resp.Header.Get("Late") != "" {
			t.Errorf("header %v", resp.Header)
		}
		_ = resp.Body.Close()
	})
}

func TestHandlerThatWritesNothing(t *testing.T) {
	try(t, func(http.ResponseWriter, *http.Request) {}, func(t *testing.T, client *http.Client) {
		resp, err := get(t, t.Context(), client)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", resp, err)
		}
		_ = resp.Body.Close()
	})
}

func TestHead(t *testing.T) {
	try(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 2*bufferLimit))
	}, func(t *testing.T, client *http.Client) {
		resp, err := client.Head("http://inside/")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	})
}

func TestStreamArrivesPieceByPiece(t *testing.T) {
	next := make(chan string)
	try(t, func(w http.ResponseWriter, _ *http.Request) {
		for piece := range next {
			_, _ = io.WriteString(w, piece)
			w.(http.Flusher).Flush()
		}
	}, func(t *testing.T, client *http.Client) {
		next = make(chan string)
		go func() { next <- "one" }()
		resp, err := get(t, t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		for _, want := range []string{"one", "two", "three"} {
			if want != "one" {
				next <- want
			}
			if n, err := resp.Body.Read(buf); err != nil || string(buf[:n]) != want {
				t.Errorf("read %q, %v, want %q", buf[:n], err, want)
			}
		}
		close(next)
		if _, err := resp.Body.Read(buf); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
		_ = resp.Body.Close()
	})
}

func TestClientThatGoesAwayEndsTheHandler(t *testing.T) {
	for _, test := range []struct {
		name  string
		leave func(cancel context.CancelFunc, resp *http.Response)
	}{
		{"by cancelling", func(cancel context.CancelFunc, _ *http.Response) { cancel() }},
		{"by closing the body", func(_ context.CancelFunc, resp *http.Response) { _ = resp.Body.Close() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			ended := false
			try(t, func(w http.ResponseWriter, r *http.Request) {
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				if _, err := io.WriteString(w, "x"); !errors.Is(err, errGone) {
					t.Errorf("write to no one: %v", err)
				}
				ended = true
			}, func(t *testing.T, client *http.Client) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				resp, err := get(t, ctx, client)
				if err != nil {
					t.Fatal(err)
				}
				test.leave(cancel, resp)
				synctest.Wait()
				if !ended {
					t.Error("the handler still runs")
				}
				if _, err := resp.Body.Read(make([]byte, 1)); err == nil || err == io.EOF {
					t.Errorf("read after leaving: %v", err)
				}
			})
		})
	}
}

func TestSlowReaderHoldsTheWriterBack(t *testing.T) {
	written := 0
	try(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 100 {
			n, err := w.Write(make([]byte, 32<<10))
			written += n
			if err != nil {
				return
			}
		}
	}, func(t *testing.T, client *http.Client) {
		resp, err := get(t, t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if written >= bufferLimit+64<<10 {
			t.Errorf("%d bytes were taken from the handler while no one read", written)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		if n != 100*32<<10 || err != nil {
			t.Errorf("read %d bytes, %v", n, err)
		}
		_ = resp.Body.Close()
	})
}

func TestWriterThatWaitsForRoomIsFreedWhenTheClientLeaves(t *testing.T) {
	try(t, func(w http.ResponseWriter, _ *http.Request) {
		if _, err := w.Write(make([]byte, 10*bufferLimit)); !errors.Is(err, errGone) {
			t.Errorf("write: %v", err)
		}
	}, func(t *testing.T, client *http.Client) {
		resp, err := get(t, t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		_ = resp.Body.Close()
	})
}

func TestTimeoutBeforeTheHeader(t *testing.T) {
	try(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, func(t *testing.T, client *http.Client) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := get(t, ctx, client); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

func TestPanics(t *testing.T) {
	t.Run("before the header", func(t *testing.T) {
		try(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, func(t *testing.T, client *http.Client) {
			if _, err := get(t, t.Context(), client); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("error %v", err)
			}
		})
	})
	t.Run("after the header", func(t *testing.T) {
		try(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, func(t *testing.T, client *http.Client) {
			resp, err := get(t, t.Context(), client)
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(resp.Body)
			if string(data) != "half" || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%q, %v", data, err)
			}
			_ = resp.Body.Close()
		})
	})
}

func BenchmarkRoundTrip(b *testing.B) {
	answer := bytes.Repeat([]byte("x"), 1<<10)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) })
	client := &http.Client{Transport: Transport(handler, slog.New(slog.DiscardHandler))}
	b.ReportAllocs()
	for b.Loop() {
		resp, err := client.Get("http://inside/")
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// Warnings may come from a goroutine that goes on after the handler has answered.
func TestWarnings(t *testing.T) {
	var late sync.WaitGroup
	try(t, func(w http.ResponseWriter, _ *http.Request) {
		warn := w.(interface{ AddWarning(value string) }).AddWarning
		w.Header().Set("Warning", "zero")
		warn("one")
		warn("one")
		warn(strings.Repeat("x", warningLimit))
		warn("two")
		late.Go(func() {
			for range 1000 {
				warn("three")
			}
		})
		w.Header().Set("A", "b")
		w.WriteHeader(http.StatusAccepted)
		w.Header().Set("C", "d")
		warn("four")
	}, func(t *testing.T, client *http.Client) {
		resp, err := get(t, t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		late.Wait()
		got := resp.Header.Values("Warning")
		if len(got) < 3 || !slices.Equal(got[:3], []string{"zero", "one", "two"}) ||
			len(got) > 4 || slices.Contains(got, "four") || resp.Header.Get("A") != "b" {
			t.Errorf("header %v", resp.Header)
		}
	})
}
