package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestChunksAreReadOnceAndForgotten(t *testing.T) {
	c := newChunks()
	a, b := &shown{}, &shown{}
	reads := 0
	get := func(l *shown, chunk, size int) {
		t.Helper()
		data, err := c.get(t.Context(), chunkKey{l, chunk}, func(context.Context) ([]byte, error) {
			reads++
			return make([]byte, size), nil
		})
		if err != nil || len(data) != size {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
	}
	get(a, 1, 100)
	get(a, 1, 100)
	get(b, 1, 100)
	if reads != 2 || c.bytes != 200 {
		t.Errorf("%d reads, %d bytes", reads, c.bytes)
	}
	c.forget(b)
	if c.bytes != 100 || len(c.kept) != 1 {
		t.Errorf("%d bytes of %d chunks after one layer has gone", c.bytes, len(c.kept))
	}
	for i := range 5 {
		get(b, i, keptBytes/4)
	}
	if c.bytes > keptBytes || len(c.kept) != 4 || c.old.Len() != 4 {
		t.Errorf("%d bytes of %d chunks are kept", c.bytes, len(c.kept))
	}
	reads = 0
	get(a, 1, 100)
	if reads != 1 {
		t.Error("the oldest chunk was kept")
	}
}

func TestChunkErrorsAreNotKept(t *testing.T) {
	c := newChunks()
	wrong := errors.New("wrong")
	for range 2 {
		if _, err := c.get(t.Context(), chunkKey{}, func(context.Context) ([]byte, error) { return nil, wrong }); !errors.Is(err, wrong) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := c.get(t.Context(), chunkKey{}, func(context.Context) ([]byte, error) { return nil, nil }); err != nil {
		t.Errorf("got %v", err)
	}
}

// Readers share the work. It ends when the last of them is killed, and the next reader starts it
// again.
func TestChunkReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChunks()
		ended := make(chan struct{})
		first := func(ctx context.Context) ([]byte, error) {
			<-ctx.Done()
			close(ended)
			return nil, ctx.Err()
		}
		var cancels []context.CancelFunc
		results := make(chan error, 2)
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			cancels = append(cancels, cancel)
			go func() {
				_, err := c.get(ctx, chunkKey{}, first)
				results <- err
			}()
		}
		synctest.Wait()
		cancels[0]()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("the work ended with the first reader")
		default:
		}
		cancels[1]()
		<-ended
		if err := errors.Join(<-results, <-results); !errors.Is(err, context.Canceled) {
			t.Errorf("readers got %v", err)
		}
		data, err := c.get(t.Context(), chunkKey{}, func(context.Context) ([]byte, error) { return []byte("x"), nil })
		if err != nil || string(data) != "x" {
			t.Errorf("the next reader got %q, %v", data, err)
		}
	})
}
