package image

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/manifest"
)

// pushable makes the fake registry take uploads. fail may answer a request itself.
func pushable(r *fakeRegistry, fail func(w http.ResponseWriter, req *http.Request) bool) *uploads {
	u := &uploads{r: r, fail: fail, repos: map[string]bool{}}
	r.intercept = u.serve
	return u
}

type uploads struct {
	r    *fakeRegistry
	fail func(w http.ResponseWriter, req *http.Request) bool

	mu      sync.Mutex
	repos   map[string]bool // repo@digest of blobs
	mounted int
	puts    int
}

func (u *uploads) serve(w http.ResponseWriter, req *http.Request) bool {
	if u.fail != nil && u.fail(w, req) {
		return true
	}
	path := strings.TrimPrefix(req.URL.Path, "/v2/")
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case req.Method == http.MethodHead && strings.Contains(path, "/blobs/"):
		repo, d, _ := strings.Cut(path, "/blobs/")
		if u.repos[repo+"@"+d] {
			return false
		}
		w.WriteHeader(http.StatusNotFound)
	case req.Method == http.MethodPost && strings.HasSuffix(path, "/blobs/uploads/"):
		repo := strings.TrimSuffix(path, "/blobs/uploads/")
		q := req.URL.Query()
		if d := q.Get("mount"); d != "" && u.repos[q.Get("from")+"@"+d] {
			u.repos[repo+"@"+d] = true
			u.mounted++
			w.WriteHeader(http.StatusCreated)
			break
		}
		w.Header().Set("Location", "/v2/"+repo+"/blobs/uploads/1?state=x")
		w.WriteHeader(http.StatusAccepted)
	case req.Method == http.MethodPut && strings.Contains(path, "/blobs/uploads/"):
		repo, _, _ := strings.Cut(path, "/blobs/")
		data, err := io.ReadAll(req.Body)
		if d := req.URL.Query().Get("digest"); err != nil || digest.FromBytes(data).String() != d || req.URL.Query().Get("state") != "x" {
			refuse(w, http.StatusBadRequest, "DIGEST_INVALID")
			break
		}
		u.puts++
		u.repos[repo+"@"+u.r.blob(data).String()] = true
		w.WriteHeader(http.StatusCreated)
	case req.Method == http.MethodPut && strings.Contains(path, "/manifests/"):
		repo, tag, _ := strings.Cut(path, "/manifests/")
		data, _ := io.ReadAll(req.Body)
		d := u.r.push(repo+":"+tag, req.Header.Get("Content-Type"), data)
		w.Header().Set("Docker-Content-Digest", d.String())
		w.WriteHeader(http.StatusCreated)
	case req.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	default:
		return false
	}
	return true
}

func TestPush(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	a := r.image("a:1", threeLayers(), nil)
	_, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	to := newFake(t)
	up := pushable(to, nil)
	var done, total int64
	got, err := s.Push(t.Context(), r.ref("a:1"), to.ref("team/a:2"), PushOptions{Progress: func(d, n int64) { done, total = d, n }})
	must(t, err)
	if got.Digest != a.manifest || len(got.Notes) != 0 || done != total || total == 0 || up.puts != 4 {
		t.Errorf("pushed %+v, %d of %d bytes, %d blobs", got, done, total, up.puts)
	}
	// Back again, and a second time nothing but the manifest is sent; to another
	// repository of the registry nothing but names.
	other := openStore(t, nil)
	img, err := other.Pull(t.Context(), to.ref("team/a:2"), PullOptions{})
	must(t, err)
	if img.ID != a.config || img.Manifest != a.manifest {
		t.Errorf("what was pushed is %+v", img)
	}
	_, err = other.Push(t.Context(), to.ref("team/a:2"), "", PushOptions{})
	must(t, err)
	_, err = other.Push(t.Context(), to.ref("team/a:2"), to.ref("elsewhere:1"), PushOptions{})
	must(t, err)
	if up.puts != 4 || up.mounted != 4 {
		t.Errorf("%d blobs sent, %d taken over", up.puts, up.mounted)
	}
}

// Blobs that were not kept stay at home if the registry has them, and are packed again
// if it has not.
func TestPushWithoutBlobs(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	up := pushable(r, nil)
	layer := gzipLayer(tarOf("f", "1"))
	a := r.image("a:1", []testLayer{layer}, nil)
	_, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	must(t, os.Remove(s.blobs.Path(a.layers[0])))

	up.repos["a@"+a.layers[0].String()] = true
	got, err := s.Push(t.Context(), r.ref("a:1"), r.ref("b:1"), PushOptions{})
	must(t, err)
	if got.Digest != a.manifest || len(got.Notes) != 0 {
		t.Errorf("within the registry: %+v", got)
	}
	to := newFake(t)
	pushable(to, nil)
	got, err = s.Push(t.Context(), r.ref("a:1"), to.ref("a:1"), PushOptions{})
	must(t, err)
	if got.Digest == a.manifest || len(got.Notes) != 1 {
		t.Errorf("elsewhere: %+v", got)
	}
	img, err := openStore(t, nil).Pull(t.Context(), to.ref("a:1"), PullOptions{})
	if must(t, err); img.ID != a.config || img.Manifest != got.Digest {
		t.Errorf("back again: %+v", img)
	}
	if left := s.left(t); !strings.HasSuffix(left, "ingest 0 staging 0") {
		t.Error(left)
	}
}

// A Docker manifest stays one: podman and CRI-O refuse it with layers of OCI's types. What
// is made of it here is an OCI image, also in its layers.
func TestDockerManifest(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	layer := gzipLayer(tarOf("f", "1"))
	layer.mediaType = manifest.DockerLayerGzip
	a := r.image("a:1", []testLayer{layer}, func(m *ocispec.Manifest, _ *ocispec.Image) {
		m.MediaType, m.Config.MediaType = manifest.DockerManifest, manifest.DockerConfig
	})
	_, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	must(t, os.Remove(s.blobs.Path(a.layers[0])))
	to := newFake(t)
	pushable(to, nil)
	_, err = s.Push(t.Context(), r.ref("a:1"), to.ref("a:1"), PushOptions{})
	must(t, err)
	_, err = s.Extend(t.Context(), r.ref("a:1"), "localhost/more:1", func(*ocispec.Image) error { return nil },
		func(_ context.Context, w io.Writer) error {
			_, err := w.Write(tarOf("more", "1"))
			return err
		})
	must(t, err)
	_, docs, err := s.Documents(t.Context(), "localhost/more:1")
	must(t, err)
	for name, tc := range map[string]struct {
		manifest []byte
		other    string
	}{
		"pushed": {to.manifests["a:1"].data, ".oci."},
		"made":   {docs.Manifest, ".docker."},
	} {
		if strings.Contains(string(tc.manifest), tc.other) {
			t.Errorf("%s: %s", name, tc.manifest)
		}
	}
}

// What a registry does wrong once is tried again; what it does not allow is said.
func TestPushFaults(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	r.image("a:1", threeLayers(), nil)
	_, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	once := func(method, part string, status int) func(http.ResponseWriter, *http.Request) bool {
		var did sync.Once
		return func(w http.ResponseWriter, req *http.Request) (answered bool) {
			if req.Method == method && strings.Contains(req.URL.Path, part) {
				did.Do(func() {
					answered = true
					if status == 0 { // the connection breaks
						panic(http.ErrAbortHandler)
					}
					refuse(w, status, "FAULT")
				})
			}
			return answered
		}
	}
	for name, fail := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"503 to an upload":     once(http.MethodPost, "/uploads/", http.StatusServiceUnavailable),
		"a cut upload":         once(http.MethodPut, "/uploads/", 0),
		"500 to a blob":        once(http.MethodPut, "/uploads/", http.StatusInternalServerError),
		"429 to a question":    once(http.MethodHead, "/blobs/", http.StatusTooManyRequests),
		"a cut manifest":       once(http.MethodPut, "/manifests/", 0),
		"502 for the manifest": once(http.MethodPut, "/manifests/", http.StatusBadGateway),
	} {
		t.Run(name, func(t *testing.T) {
			to := newFake(t)
			pushable(to, fail)
			var done, total int64
			_, err := s.Push(t.Context(), r.ref("a:1"), to.ref("a:1"), PushOptions{Progress: func(d, n int64) { done, total = d, n }})
			if err != nil || done != total {
				t.Errorf("%d of %d bytes, %v", done, total, err)
			}
		})
	}
	always := func(method string, status int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, req *http.Request) bool {
			if req.Method != method {
				return false
			}
			refuse(w, status, "DENIED")
			return true
		}
	}
	for name, tc := range map[string]struct {
		fail func(http.ResponseWriter, *http.Request) bool
		want error
	}{
		"not allowed":  {always(http.MethodPost, http.StatusForbidden), ErrUnauthorized},
		"no password":  {always(http.MethodPost, http.StatusUnauthorized), ErrUnauthorized},
		"always down":  {always(http.MethodHead, http.StatusBadGateway), ErrUnavailable},
		"bad manifest": {always(http.MethodPut, http.StatusBadRequest), ErrUnavailable},
		"nowhere to": {func(w http.ResponseWriter, req *http.Request) bool {
			if req.Method == http.MethodPost {
				w.WriteHeader(http.StatusAccepted)
			}
			return req.Method == http.MethodPost
		}, ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			to := newFake(t)
			pushable(to, tc.fail)
			if _, err := s.Push(t.Context(), r.ref("a:1"), to.ref("a:1"), PushOptions{}); !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
	for ref, want := range map[string]error{
		"none:1": ErrNotFound, r.ref("a@" + string(digest.FromString("x"))): ErrInvalidReference, "short": ErrInvalidReference,
	} {
		from := r.ref("a:1")
		if want == ErrNotFound {
			from = ref
			ref = r.ref("b:1")
		}
		if _, err := s.Push(t.Context(), from, ref, PushOptions{}); !errors.Is(err, want) {
			t.Errorf("push %s to %s: %v, want %v", from, ref, err, want)
		}
	}
	if left := s.left(t); !strings.HasSuffix(left, "ingest 0 staging 0") {
		t.Error(left)
	}
}

// An image of an index is pushed as this machine's.
func TestPushOfIndex(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	a := r.image("a:amd", threeLayers(), nil)
	r.index("a:1", ocispec.MediaTypeImageIndex, r.of("a", a.manifest, "linux", runtime.GOARCH, ""))
	_, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	to := newFake(t)
	pushable(to, nil)
	got, err := s.Push(t.Context(), r.ref("a:1"), to.ref("a:1"), PushOptions{})
	if must(t, err); got.Digest != a.manifest || len(got.Notes) != 1 {
		t.Errorf("pushed %+v", got)
	}
}
