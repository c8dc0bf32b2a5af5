package registry

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A registry that answers before it has read an upload has the transport read on for a while:
// what that sends is no progress of the next try.
func TestAnswerBeforeUpload(t *testing.T) {
	data := bytes.Repeat([]byte("x"), 8<<20)
	f := newFake(t)
	refused := false
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		switch r.Method {
		case http.MethodPost:
			w.Header().Set("Location", r.URL.Path+"1")
			w.WriteHeader(http.StatusAccepted)
		case http.MethodPut:
			if !refused {
				refused = true
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusCreated)
		default:
			return false
		}
		return true
	}
	c, err := NewClient(Config{})
	must(t, err)
	defer c.Close()
	at, err := url.Parse(f.URL)
	must(t, err)
	repo, err := c.Repository(at.Host, "a", Auth{})
	must(t, err)
	up, err := repo.Upload(t.Context())
	must(t, err)

	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	var sent int64
	d := ocispec.Descriptor{Digest: digest.FromBytes(data), Size: int64(len(data))}
	must(t, up.Blob(t.Context(), d, open, func(n int64) { sent += n }))
	if !refused || sent != d.Size {
		t.Errorf("progress of %d bytes of %d, refused first: %v", sent, d.Size, refused)
	}
}

// A token service that stops in the middle of its answer is not waited for.
func TestUploadWithTokenServiceThatStops(t *testing.T) {
	// The time begins with the connection, for which a busy machine may need more than the first.
	for stall := 10 * time.Millisecond; stall < time.Minute; stall *= 2 {
		if asksForToken(t, stall) {
			return
		}
	}
	t.Error("the token service is never asked")
}

// asksForToken says whether the client came to the token service, which stops, before it had waited
// for stall.
func asksForToken(t *testing.T, stall time.Duration) bool {
	t.Helper()
	f := newFake(t)
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/token" {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+f.URL+`/token",service="s"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		_, _ = io.WriteString(w, "{")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	}
	repo := repository(t, client(t, Config{StallTimeout: stall}, "", ""), f.host(), Auth{})
	if _, err := repo.Upload(t.Context()); err == nil || !strings.Contains(err.Error(), errStalled.Error()) {
		t.Error(err)
	}
	asked := f.asked()
	if len(asked) > 2 {
		t.Errorf("%d requests", len(asked))
	}
	return len(asked) >= 2 && asked[1].URL.Path == "/token"
}
