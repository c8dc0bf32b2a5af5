package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// Upload is one repository being pushed to: blobs first, then the manifest, after which
// the registry has the image. It belongs to one host, the first that may be pushed to.
type Upload struct {
	repo *Repository
	e    *endpoint
}

// Upload prepares a push and finds out how the host is spoken to. from names other
// repositories of the registry, by their paths, that blobs may be taken over from.
func (r *Repository) Upload(ctx context.Context, from ...string) (*Upload, error) {
	all, err := r.able(Push)
	if err != nil {
		return nil, err
	}
	u := &Upload{r, all[0]}
	// One token for all that follows, instead of one for each kind of request.
	ctx = u.scoped(ctx, from)
	resp, err := r.ask(ctx, u.e, "tags/list?n=1", nil, 0)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	// The rights to push are asked for by pushing: here a new repository is not found.
	return u, nil
}

// scoped tells the token service what is going to be done.
func (u *Upload) scoped(ctx context.Context, from []string) context.Context {
	ctx = auth.AppendScopesForHost(ctx, u.e.Host.Host, auth.ScopeRepository(u.repo.path, auth.ActionPull, auth.ActionPush))
	for _, path := range from {
		ctx = auth.AppendScopesForHost(ctx, u.e.Host.Host, auth.ScopeRepository(path, auth.ActionPull))
	}
	return ctx
}

// Has says whether the repository has a blob, after having it taken over from another
// repository of the registry that has it, if there is one.
func (u *Upload) Has(ctx context.Context, d ocispec.Descriptor, from ...string) (has bool, err error) {
	ctx = u.scoped(ctx, from)
	err = retry(ctx, smallTries, func() error {
		has, err = u.stat(ctx, d)
		return err
	})
	if err != nil || has {
		return has, err
	}
	for _, path := range from {
		// Registries that cannot, or may not, begin an ordinary upload instead.
		if has, err = u.mount(ctx, d, path); err != nil || has {
			return has, err
		}
	}
	return false, nil
}

func (u *Upload) stat(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	resp, err := u.do(ctx, http.MethodHead, u.e.url(u.repo, "blobs/"+d.Digest.String()), nil)
	if err != nil {
		return false, err
	}
	resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusOK:
		return resp.ContentLength < 0 || resp.ContentLength == d.Size, nil
	case resp.StatusCode == http.StatusNotFound:
		return false, nil
	}
	return false, u.repo.statusError(u.e, "blobs/"+d.Digest.String(), resp)
}

func (u *Upload) mount(ctx context.Context, d ocispec.Descriptor, from string) (bool, error) {
	query := url.Values{"mount": {d.Digest.String()}, "from": {from}}
	resp, err := u.do(ctx, http.MethodPost, u.e.url(u.repo, "blobs/uploads/?"+query.Encode()), nil)
	if err != nil {
		return false, err
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusAccepted {
		u.abandon(ctx, resp)
	}
	return resp.StatusCode == http.StatusCreated, nil
}

// abandon takes back an upload that was begun instead of a mount. Registries forget it in
// time without.
func (u *Upload) abandon(ctx context.Context, begun *http.Response) {
	if to, err := u.location(begun); err == nil {
		if resp, err := u.do(ctx, http.MethodDelete, to, nil); err == nil {
			resp.Body.Close()
		}
	}
}

// Blob uploads a blob, from its beginning again if that breaks off. open opens it;
// progress is told how many bytes more are sent, less than none when it starts again.
func (u *Upload) Blob(ctx context.Context, d ocispec.Descriptor, open func() (io.ReadCloser, error), progress func(int64)) error {
	ctx = u.scoped(ctx, nil)
	sent := int64(0)
	return retry(ctx, blobTries, func() error {
		if sent > 0 {
			progress(-sent)
			sent = 0
			// The registry may have had all of it when the answer was lost.
			if has, err := u.stat(ctx, d); err != nil || has {
				progress(d.Size)
				return err
			}
		}
		try := &sending{progress: progress}
		err := u.put(ctx, d, open, try.add)
		sent = try.end()
		return err
	})
}

// sending counts what one try sends. A transport may read a body for a while after
// the registry has answered: that counts no more.
type sending struct {
	progress func(int64)

	mu   sync.Mutex
	sent int64
	over bool
}

func (s *sending) add(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.sent += n
		s.progress(n)
	}
}

func (s *sending) end() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	return s.sent
}

func (u *Upload) put(ctx context.Context, d ocispec.Descriptor, open func() (io.ReadCloser, error), progress func(int64)) error {
	resp, err := u.do(ctx, http.MethodPost, u.e.url(u.repo, "blobs/uploads/"), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		return u.repo.statusError(u.e, "blobs/uploads/", resp)
	}
	to, err := u.location(resp)
	if err != nil {
		return err
	}
	where, err := url.Parse(to)
	if err != nil {
		return err
	}
	query := where.Query()
	query.Set("digest", d.Digest.String())
	where.RawQuery = query.Encode()
	resp, err = u.do(ctx, http.MethodPut, where.String(),
		&payload{open: open, size: d.Size, mediaType: "application/octet-stream", progress: progress})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return u.repo.statusError(u.e, "blob "+d.Digest.String(), resp)
	}
	return nil
}

// location is where an upload goes on. It may be on another host, which gets no
// credentials, but not without the encryption that the registry has.
func (u *Upload) location(resp *http.Response) (string, error) {
	to, err := resp.Location()
	if err != nil {
		return "", &remoteError{
			kind: ErrUnavailable, cause: err,
			text: fmt.Sprintf("registry %s says nowhere to upload to: %v", u.e.Host.Host, err),
		}
	}
	if to.Scheme != "https" && u.e.scheme() == "https" {
		return "", &remoteError{kind: ErrUnavailable, text: fmt.Sprintf("registry %s wants an upload to go to %s://%s, without encryption",
			u.e.Host.Host, to.Scheme, to.Host)}
	}
	return to.String(), nil
}

// Manifest uploads a manifest under a tag, or under its digest if tag is empty. The
// blobs that it names have to be there.
func (u *Upload) Manifest(ctx context.Context, d ocispec.Descriptor, data []byte, tag string) error {
	ctx = u.scoped(ctx, nil)
	what := "manifests/" + d.Digest.String()
	if tag != "" {
		what = "manifests/" + tag
	}
	return retry(ctx, smallTries, func() error {
		resp, err := u.do(ctx, http.MethodPut, u.e.url(u.repo, what),
			&payload{open: opener(data), size: int64(len(data)), mediaType: d.MediaType})
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			return u.repo.statusError(u.e, what, resp)
		}
		if got := digest.Digest(resp.Header.Get("Docker-Content-Digest")); got != "" && got != d.Digest {
			return fmt.Errorf("%w: registry %s has stored %s of %s as %s", ErrInvalid, u.e.Host.Host, d.Digest, u.repo, got)
		}
		return nil
	})
}

// payload is the body of a request.
type payload struct {
	open      func() (io.ReadCloser, error)
	size      int64
	mediaType string
	progress  func(int64)
}

// do sends a request. Every silence of the registry is bounded, and so is all of it by what
// the size of the payload allows. A failure to read the payload is not the registry's.
func (u *Upload) do(ctx context.Context, method, to string, p *payload) (*http.Response, error) {
	stall, size := u.repo.client.cfg.StallTimeout, int64(0)
	if p != nil {
		size = p.size
	}
	g := newGuard(ctx, 2*stall, 4*stall+time.Duration(size/slowest)*time.Second)
	req, err := http.NewRequestWithContext(g.ctx, method, to, http.NoBody)
	if err != nil {
		g.stop()
		return nil, err
	}
	local := &payloadError{}
	if p != nil {
		if err := p.attach(req, g, local); err != nil {
			g.stop()
			return nil, err
		}
	}
	resp, err := u.e.client.Do(req)
	if err != nil {
		err = g.why(err)
		g.stop()
		if err := local.err.Load(); err != nil {
			return nil, *err
		}
		return nil, u.repo.transportError(ctx, u.e, err)
	}
	g.pause()
	resp.Body = &guardedBody{ReadCloser: resp.Body, guard: g}
	return resp, nil
}

// payloadError is why a payload could not be read.
type payloadError struct{ err atomic.Pointer[error] }

// attach makes the payload the body of a request, also of a second try of it with a token.
func (p *payload) attach(req *http.Request, g *guard, local *payloadError) error {
	first := true
	req.GetBody = func() (io.ReadCloser, error) {
		body, err := p.open()
		if err != nil {
			local.err.Store(&err)
			return nil, err
		}
		b := &sentBody{ReadCloser: body, guard: g, local: local}
		if first && p.progress != nil {
			b.progress = p.progress
		}
		first = false
		return b, nil
	}
	var err error
	req.Body, err = req.GetBody()
	req.ContentLength = p.size
	req.Header.Set("Content-Type", p.mediaType)
	return err
}

// sentBody starts the guard's clock again with each piece that is sent.
type sentBody struct {
	io.ReadCloser
	guard    *guard
	local    *payloadError
	progress func(int64)
	closed   atomic.Bool
}

func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.guard.resume()
	// A connection that breaks closes a body also while it is read.
	if err != nil && !errors.Is(err, io.EOF) && !b.closed.Load() {
		b.local.err.Store(&err)
	}
	if b.progress != nil && n > 0 {
		b.progress(int64(n))
	}
	return n, err
}

func (b *sentBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}

// opener opens bytes in memory.
func opener(data []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}
