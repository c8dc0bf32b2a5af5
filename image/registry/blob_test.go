package registry

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// large is a blob that is fetched in parts; its bytes do not repeat.
var large = sync.OnceValue(func() []byte {
	data := make([]byte, parallelMin+parallelPart/2+12345)
	_, _ = rand.Read(data)
	return data
})

// fetch gets a blob and checks that all of it came.
func fetch(t *testing.T, r *Repository, d ocispec.Descriptor, want []byte) {
	t.Helper()
	var m memory
	var got atomic.Int64
	if err := r.Blob(t.Context(), d, &m, func(n int64) { got.Add(n) }); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(m.data, want) || m.arrived != d.Size || m.falls != 0 {
		t.Errorf("%d bytes, arrived %d, %d times back", len(m.data), m.arrived, m.falls)
	}
	if got.Load() != d.Size {
		t.Errorf("progress of %d bytes, want %d", got.Load(), d.Size)
	}
}

func TestLargeBlobInParts(t *testing.T) {
	f := newFake(t)
	d := f.has(large())
	// The second part waits until the third and fourth have begun: they are fetched
	// at the same time.
	var begun sync.WaitGroup
	begun.Add(2)
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		switch r.Header.Get("Range") {
		case fmt.Sprintf("bytes=%d-%d", parallelPart, 2*parallelPart-1):
			begun.Wait()
		case fmt.Sprintf("bytes=%d-%d", 2*parallelPart, 3*parallelPart-1), fmt.Sprintf("bytes=%d-%d", 3*parallelPart, 4*parallelPart-1):
			begun.Done()
		}
		return false
	}
	c := client(t, Config{}, "", "")
	fetch(t, repository(t, c, f.host(), Auth{}), d, large())
	if n := len(f.asked()); n != 5 {
		t.Errorf("%d requests, want one for each part", n)
	}
	if len(c.slots.of) != 0 {
		t.Errorf("slots kept: %v", c.slots.of)
	}
}

// With no slot left next to the caller's the parts come one after the other.
func TestLargeBlobTakesNobodysSlot(t *testing.T) {
	f := newFake(t)
	d := f.has(large())
	var now, most atomic.Int32
	f.intercept = func(http.ResponseWriter, *http.Request) bool {
		most.Store(max(most.Load(), now.Add(1)))
		return false
	}
	f.Config.Handler = counting(f.Config.Handler, &now)
	c := client(t, Config{MaxConcurrentDownloads: 1}, "", "")
	r := repository(t, c, f.host(), Auth{})
	release, err := r.Slot(t.Context())
	must(t, err)
	defer release()
	fetch(t, r, d, large())
	if most.Load() != 1 {
		t.Errorf("%d requests at the same time", most.Load())
	}
}

// counting takes one off when a request is over.
func counting(h http.Handler, now *atomic.Int32) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		now.Add(-1)
	})
}

func TestLargeBlobWithoutRanges(t *testing.T) {
	f := newFake(t)
	d := f.has(large())
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("Range")
		return false
	}
	fetch(t, repository(t, client(t, Config{}, "", ""), f.host(), Auth{}), d, large())
	if n := len(f.asked()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// Each part is resumed where it broke off.
func TestLargeBlobSurvivesCuts(t *testing.T) {
	f := newFake(t)
	d := f.has(large())
	var cut sync.Map
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		var from, to int64
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
		if _, again := cut.LoadOrStore(to, true); again {
			return false
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, d.Size))
		w.Header().Set("Content-Length", fmt.Sprint(to-from+1))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(large()[from : from+1<<20])
		panic(http.ErrAbortHandler)
	}
	fetch(t, repository(t, client(t, Config{}, "", ""), f.host(), Auth{}), d, large())
}

func TestLargeBlobFails(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(f *fake, d *ocispec.Descriptor)
		want  string
	}{
		"wrong byte": {func(f *fake, d *ocispec.Descriptor) {
			data := bytes.Clone(large())
			data[len(data)/2]++
			f.blobs[d.Digest.String()] = data
		}, "its manifest says sha256:"},
		"shorter": {func(f *fake, d *ocispec.Descriptor) { f.blobs[d.Digest.String()] = large()[:parallelMin] }, "sends range"},
		"longer":  {func(_ *fake, d *ocispec.Descriptor) { d.Size -= parallelPart / 4 }, "sends range"},
		"gone in between": {func(f *fake, _ *ocispec.Descriptor) {
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
					return false
				}
				http.NotFound(w, r)
				return true
			}
		}, "404"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			d := f.has(large())
			c.spoil(f, &d)
			err := repository(t, client(t, Config{}, "", ""), f.host(), Auth{}).Blob(t.Context(), d, &memory{}, ignore)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestLargeBlobStopsAtOnce(t *testing.T) {
	f := newFake(t)
	d := f.has(large())
	ctx, cancel := context.WithCancel(t.Context())
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
			cancel()
			<-r.Context().Done()
		}
		return false
	}
	if err := repository(t, client(t, Config{}, "", ""), f.host(), Auth{}).Blob(ctx, d, &memory{}, ignore); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

type fullDisk struct{ memory }

var errFull = errors.New("disk full")

func (*fullDisk) WriteAt([]byte, int64) (int, error) { return 0, errFull }

// What our own disk refuses is not asked for again, here or elsewhere.
func TestLocalErrorIsFinal(t *testing.T) {
	for name, data := range map[string][]byte{"small": []byte("blob"), "large": large()} {
		origin, mirror := newFake(t), newFake(t)
		d := origin.has(data)
		mirror.has(data)
		c := client(t, Config{MaxConcurrentDownloads: 1}, origin.host(), fmt.Sprintf("server = %q\n[host.%q]", origin.URL, mirror.URL))
		err := repository(t, c, origin.host(), Auth{}).Blob(t.Context(), d, &fullDisk{}, ignore)
		if !errors.Is(err, errFull) || errors.Is(err, ErrUnavailable) || len(origin.asked()) != 0 {
			t.Errorf("%s: %v, origin asked %d times", name, err, len(origin.asked()))
		}
	}
}

// A mirror that lies is found out and not asked for the same again.
func TestLyingMirror(t *testing.T) {
	origin, mirror := newFake(t), newFake(t)
	d := origin.has([]byte("blob"))
	mirror.blobs[d.Digest.String()] = []byte("blab")
	c := client(t, Config{}, origin.host(), fmt.Sprintf("server = %q\n[host.%q]", origin.URL, mirror.URL))
	r := repository(t, c, origin.host(), Auth{})
	if err := r.Blob(t.Context(), d, &memory{}, ignore); !errors.Is(err, ErrInvalid) || r.Honest() != 1 {
		t.Fatalf("%v, %d honest", err, r.Honest())
	}
	fetch(t, r, d, []byte("blob"))
	if n := len(mirror.asked()); n != 1 {
		t.Errorf("mirror asked %d times", n)
	}
	origin.blobs[d.Digest.String()] = []byte("bleb")
	if err := r.Blob(t.Context(), d, &memory{}, ignore); !errors.Is(err, ErrInvalid) || r.Honest() != 0 {
		t.Errorf("%v, %d honest: no host is left", err, r.Honest())
	}
}

// A host is blamed for the blobs that it has sent, not for others of the same pull.
func TestLyingMirrorShamesNobodyElse(t *testing.T) {
	origin, mirror := newFake(t), newFake(t)
	d, only := origin.has([]byte("blob")), origin.has([]byte("only at the origin"))
	mirror.blobs[d.Digest.String()] = []byte("blab")
	c := client(t, Config{}, origin.host(), fmt.Sprintf("server = %q\n[host.%q]", origin.URL, mirror.URL))
	r := repository(t, c, origin.host(), Auth{})
	fetch(t, r, only, []byte("only at the origin"))
	if err := r.Blob(t.Context(), d, &memory{}, ignore); !errors.Is(err, ErrInvalid) || r.Honest() != 1 {
		t.Fatalf("%v, %d honest", err, r.Honest())
	}
	fetch(t, r, d, []byte("blob"))
}
