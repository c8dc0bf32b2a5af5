package image

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// slowest is the bytes per second below which a registry is not worth waiting for, so
// that one that drips cannot hold a download for ever.
const slowest = 4 << 10

// userAgent is what registries see us as.
const userAgent = "coracle"

// source is where the documents and blobs of one pull come from: the mirrors of the
// reference's registry in order, then the registry itself.
type source struct {
	name      name
	endpoints []*endpoint
	stall     time.Duration
	anonymous bool
}

// endpoint is one host that serves a repository.
type endpoint struct {
	host  string
	https atomic.Bool
	guess bool // HTTP was assumed: switch if the host turns out to speak HTTPS
	// client answers authentication challenges (Basic, Bearer with token
	// services and OAuth2), keeping tokens for the time of the pull.
	client *auth.Client
}

// newSource prepares a pull; it does no I/O.
func (s *Store) newSource(n name, a Auth) *source {
	src := &source{name: n, stall: s.cfg.StallTimeout, anonymous: a == Auth{}}
	for _, m := range s.cfg.Registries[n.domain].Mirrors {
		scheme, host, err := parseMirror(m)
		if err != nil {
			continue // refused by Open
		}
		e := s.newEndpoint(host, Auth{})
		if scheme != "" {
			e.https.Store(scheme == "https")
			e.guess = false
		}
		src.endpoints = append(src.endpoints, e)
	}
	host := n.domain
	if host == "docker.io" {
		host = "registry-1.docker.io" // where Docker Hub's API is
	}
	e := s.newEndpoint(host, a)
	if _, ok := s.cfg.Registries[n.domain]; ok && host != n.domain {
		rt, scheme, _ := s.remote.of(n.domain)
		e.client.Client = s.httpClient(rt, n.domain, host)
		e.https.Store(scheme == "https")
	}
	src.endpoints = append(src.endpoints, e)
	return src
}

func (s *Store) newEndpoint(host string, a Auth) *endpoint {
	rt, scheme, guess := s.remote.of(host)
	e := &endpoint{host: host, guess: guess}
	e.https.Store(scheme == "https")
	e.client = &auth.Client{
		Client:     s.httpClient(rt, host, host),
		Cache:      auth.NewCache(),
		Header:     http.Header{"User-Agent": {userAgent}},
		ClientID:   userAgent,
		Credential: auth.StaticCredential(host, credential(a)),
	}
	return e
}

// httpClient is for the host of a registry that has the settings of domain.
func (s *Store) httpClient(rt http.RoundTripper, domain, host string) *http.Client {
	if trusted := s.cfg.Registries[domain].TokenHosts; len(trusted) > 0 {
		rt = &tokenService{base: rt, host: host, trusted: trusted}
	}
	return &http.Client{Transport: rt}
}

// credential picks the one kind that is used, in the order that Auth documents.
func credential(a Auth) auth.Credential {
	switch {
	case a.RegistryToken != "":
		return auth.Credential{AccessToken: a.RegistryToken}
	case a.IdentityToken != "":
		return auth.Credential{RefreshToken: a.IdentityToken}
	}
	return auth.Credential{Username: a.Username, Password: a.Password}
}

func (e *endpoint) scheme() string {
	if e.https.Load() {
		return "https"
	}
	return "http"
}

// get asks an endpoint for manifests/<ref> or blobs/<ref>. The response has a status
// of 2xx and a body that fails when the registry falls silent or is not done in the
// time that size bytes may take; close it.
func (src *source) get(ctx context.Context, e *endpoint, what string, header http.Header, size int64) (*http.Response, error) {
	g := newGuard(ctx, src.stall, 4*src.stall+time.Duration(size/slowest)*time.Second)
	resp, err := src.send(g.ctx, e, what, header)
	if err != nil {
		g.stop()
		return nil, src.transportError(ctx, e, g.why(err))
	}
	g.pause()
	resp.Body = &guardedBody{ReadCloser: resp.Body, guard: g}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, src.statusError(e, what, resp)
	}
	return resp, nil
}

func (src *source) send(ctx context.Context, e *endpoint, what string, header http.Header) (*http.Response, error) {
	for {
		url := e.scheme() + "://" + e.host + "/v2/" + src.name.path + "/" + what
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		for k, v := range header {
			req.Header[k] = v
		}
		resp, err := e.client.Do(req)
		if err != nil {
			return nil, err
		}
		if e.guess && !e.https.Load() && resp.StatusCode == http.StatusBadRequest {
			// Go's and nginx' servers say so in words when spoken to in HTTP.
			head, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
			resp.Body.Close()
			if strings.Contains(string(head), "HTTPS") {
				e.https.Store(true)
				continue
			}
			resp.Body = io.NopCloser(strings.NewReader(string(head)))
		}
		return resp, nil
	}
}

// top fetches the document that the reference names.
func (src *source) top(ctx context.Context) (ocispec.Descriptor, []byte, error) {
	var d ocispec.Descriptor
	data, err := src.small(ctx, "manifests/"+src.name.wanted(), maxManifestBytes, func(resp *http.Response, data []byte) error {
		mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
		if err != nil {
			mediaType = ""
		}
		if mediaType == dockerSchema1 || mediaType == dockerSchema1Sig {
			return errSchema1 // its digest is not of these bytes
		}
		d = ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		if src.name.digest != "" {
			return verify(data, src.name.digest)
		}
		if said := digest.Digest(resp.Header.Get("Docker-Content-Digest")); said != "" && said.Validate() == nil && said.Algorithm() == digest.SHA256 {
			return verify(data, said)
		}
		return nil
	})
	if err != nil {
		return d, nil, err
	}
	doc, err := parseDocument(data, d.MediaType)
	if err != nil {
		return d, nil, err
	}
	// index.json needs a type that tools understand, whatever the server said.
	if _, known := documentKinds[d.MediaType]; !known {
		d.MediaType = documentType(doc)
	}
	return d, data, nil
}

// documentType is the media type of a document whose server does not tell it.
func documentType(d *document) string {
	switch {
	case d.MediaType != "":
		return d.MediaType
	case d.isIndex():
		return ocispec.MediaTypeImageIndex
	}
	return ocispec.MediaTypeImageManifest
}

// read is a reader of nested manifests and configs.
func (src *source) read(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
	what := "blobs/"
	if _, ok := documentKinds[d.MediaType]; ok {
		what = "manifests/"
	}
	return src.small(ctx, what+d.Digest.String(), d.Size, func(_ *http.Response, data []byte) error {
		return verify(data, d.Digest)
	})
}

// small fetches a document of at most limit bytes from the first endpoint that has it
// and whose answer passes check.
func (src *source) small(ctx context.Context, what string, limit int64, check func(*http.Response, []byte) error) ([]byte, error) {
	var mirrorErrs []error
	for i, e := range src.endpoints {
		data, err := src.smallFrom(ctx, e, what, limit, check)
		if err == nil {
			return data, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if i == len(src.endpoints)-1 {
			return nil, withMirrors(err, mirrorErrs)
		}
		mirrorErrs = append(mirrorErrs, err)
	}
	return nil, fmt.Errorf("%w: no endpoint", ErrUnavailable)
}

func (src *source) smallFrom(ctx context.Context, e *endpoint, what string, limit int64, check func(*http.Response, []byte) error) (data []byte, err error) {
	header := http.Header{}
	if strings.HasPrefix(what, "manifests/") {
		header["Accept"] = acceptManifests
	}
	err = retry(ctx, smallTries, func() error {
		resp, err := src.get(ctx, e, what, header, 0)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		data, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
		if err != nil {
			return src.transportError(ctx, e, err)
		}
		if int64(len(data)) > limit {
			return fmt.Errorf("%w: %s of %s is larger than %d bytes", ErrInvalidImage, what, src.name.repo, limit)
		}
		return check(resp, data)
	})
	return data, err
}
