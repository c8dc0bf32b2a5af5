package peer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// node is another node.
type node struct {
	Node
	transport *http.Transport
	downloads chan struct{} // holds one element for each that is under way from it
	avoid     time.Time     // until when it is left alone; guarded by Swarm.mu
}

func newNode(n Node, id *identity, stall time.Duration) *node {
	dialer := net.Dialer{Timeout: time.Second}
	return &node{Node: n, downloads: make(chan struct{}, maxFromOne), transport: &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			config, err := id.clientOf(n.Name)
			if err != nil {
				return nil, err
			}
			raw, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			c := tls.Client(raw, config)
			ctx, cancel := context.WithTimeout(ctx, stall)
			defer cancel()
			if err := c.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(err, raw.Close())
			}
			return c, nil
		},
		MaxIdleConnsPerHost: 2, IdleConnTimeout: 5 * time.Second, DisableCompression: true, MaxResponseHeaderBytes: 8 << 10,
		ResponseHeaderTimeout: stall,
	}}
}

func (n *node) url(path, query string) string { return "https://" + n.Address + path + query }

// ask asks for the states of blobs.
func (n *node) ask(ctx context.Context, q question) (a answer, err error) {
	data, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url(askPath, ""), bytes.NewReader(data))
	if err != nil {
		return a, err
	}
	resp, err := n.transport.RoundTrip(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return a, fmt.Errorf("answers %s", resp.Status)
	}
	if data, err = io.ReadAll(io.LimitReader(resp.Body, maxQuestion+1)); err != nil {
		return a, err
	}
	if len(data) > maxQuestion {
		return a, fmt.Errorf("answers with more than %d bytes", maxQuestion)
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return a, err
	}
	if len(a.States) != len(q.Blobs) {
		return a, fmt.Errorf("answers for %d of %d blobs", len(a.States), len(q.Blobs))
	}
	return a, nil
}

// Source is another node that has a blob, or is receiving it.
type Source struct {
	p    *Pull
	n    *node
	blob digest.Digest
	// Unpacked says that it has, or receives, the unpacked layer only: call Layer. Otherwise
	// call Blob.
	Unpacked bool
}

// File is what a blob is written to while it arrives. Arrived says up to which byte it is whole.
type File interface {
	io.WriterAt
	Arrived(n int64)
}

// String is the node's name.
func (s *Source) String() string { return s.n.Name }

// Blob writes the blob to f, and verifies size and digest at the end. Kinds: ErrPeer, or f's
// errors, or that of ctx.
func (s *Source) Blob(ctx context.Context, d ocispec.Descriptor, f File, progress func(int64)) (err error) {
	defer func() { err = s.judge(ctx, err) }()
	body, err := s.get(ctx, blobPath, d.Size)
	if err != nil {
		return err
	}
	defer body.Close()
	h, at, buf := sha256.New(), int64(0), make([]byte, 128<<10)
	for at < d.Size {
		n, err := body.Read(buf[:min(int64(len(buf)), d.Size-at)])
		if n > 0 {
			h.Write(buf[:n])
			if _, err := f.WriteAt(buf[:n], at); err != nil {
				return &localError{err}
			}
			at += int64(n)
			f.Arrived(at)
			progress(int64(n))
		}
		if err != nil && at < d.Size {
			return err
		}
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != d.Digest.Encoded() {
		return fmt.Errorf("%w: blob has digest sha256:%s instead of %s", errUnfit, got, d.Digest)
	}
	return nil
}

// localError is our side's failure.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }

// Layer reads the layer's archive, of at most limit bytes. size is how many the node says it
// has, -1 if it does not say that. The caller compares the archive with the diff id, and calls
// Reject if it is another. Kind: ErrPeer.
func (s *Source) Layer(ctx context.Context, limit int64) (r io.ReadCloser, size int64, err error) {
	body, err := s.get(ctx, layerPath, -1)
	if err != nil {
		return nil, 0, s.judge(ctx, err)
	}
	if body.size > limit {
		err := fmt.Errorf("%w: has an archive of %d bytes, at most %d are read", errUnfit, body.size, limit)
		return nil, 0, s.judge(ctx, errors.Join(err, body.Close()))
	}
	body.left, body.judge = limit, func(err error) error { return s.judge(ctx, err) }
	return body, body.size, nil
}

// Crowded says that other nodes want the blob, too, and that the cluster is so large that those
// which have it may be too busy to send it to all.
func (s *Source) Crowded() bool {
	s.p.s.mu.Lock()
	defer s.p.s.mu.Unlock()
	if len(s.p.s.nodes) <= maxUploads {
		return false
	}
	now := time.Now()
	for _, said := range s.p.wants[s.blob].rivals {
		if now.Sub(said) < rivalFor {
			return true
		}
	}
	return false
}

// Reject has a node avoided because it sent another layer than it said. It returns an ErrPeer.
func (s *Source) Reject(err error) error {
	return s.judge(context.Background(), fmt.Errorf("%w: %w", errUnfit, err))
}

// GiveUp says that the blob could not be used, and that the reason is not known. The pull then
// fetches it from the registry, and from no other node. It returns an ErrPeer.
func (s *Source) GiveUp(err error) error {
	s.p.s.mu.Lock()
	defer s.p.s.mu.Unlock()
	s.p.wants[s.blob].givenUp = true
	return fmt.Errorf("%w: %s: %w", ErrPeer, s, err)
}

// get asks for a blob or layer. size is the length that it must have, -1 if that is not known.
func (s *Source) get(ctx context.Context, path string, size int64) (*body, error) {
	release, err := s.reserve(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.checkLeftAlone(); err != nil {
		release()
		return nil, err
	}
	b := &body{release: release, left: size, stall: s.p.s.stall}
	ctx, b.cancel = context.WithCancelCause(ctx)
	b.ctx = ctx
	b.timer = time.AfterFunc(b.stall, func() { b.cancel(fmt.Errorf("%w: nothing came for %s", errUnfit, b.stall)) })
	if err := s.open(ctx, b, path, size); err != nil {
		err = b.because(err)
		b.end()
		return nil, err
	}
	b.timer.Stop()
	return b, nil
}

// reserve waits for a place among the downloads from the node, and then among all.
func (s *Source) reserve(ctx context.Context) (release func(), err error) {
	of := []chan struct{}{s.n.downloads, s.p.s.downloads}
	held := 0
	release = func() {
		for _, places := range of[:held] {
			<-places
		}
	}
	for _, places := range of {
		select {
		case places <- struct{}{}:
			held++
		case <-ctx.Done():
			release()
			return nil, ctx.Err()
		}
	}
	return release, nil
}

// checkLeftAlone fails if the node is avoided by now. While this blob waited, another one may have
// found that the node stalls: without the check, each blob would find out by itself.
func (s *Source) checkLeftAlone() error {
	s.p.s.mu.Lock()
	defer s.p.s.mu.Unlock()
	if time.Now().Before(s.n.avoid) {
		return errLeftAlone
	}
	return nil
}

func (s *Source) open(ctx context.Context, b *body, path string, size int64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.n.url(path, "?"+target(s.p.repository, s.blob)), nil)
	if err != nil {
		return err
	}
	resp, err := s.n.transport.RoundTrip(req)
	if err != nil {
		return err
	}
	switch {
	case resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusNotFound:
		err = errBusy // or the blob is about to arrive, or to get its name
	case resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("answers %s", resp.Status)
	case size >= 0 && resp.ContentLength != size:
		err = fmt.Errorf("%w: has %d bytes of a blob of %d", errUnfit, resp.ContentLength, size)
	}
	if err != nil {
		return errors.Join(err, resp.Body.Close())
	}
	b.r, b.size = resp.Body, resp.ContentLength
	return nil
}

// judge makes a failure an ErrPeer, and notes what follows from it for the node.
func (s *Source) judge(ctx context.Context, err error) error {
	var local *localError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &local):
		return local.err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	s.p.s.mu.Lock()
	defer s.p.s.mu.Unlock()
	w := s.p.wants[s.blob]
	if errors.Is(err, errBusy) {
		w.refused(s.n, time.Now(), s.p.s.patience)
	} else {
		// Each node is tried once. The time that this took was not spent waiting for a turn.
		w.failed[s.n], w.since = true, time.Time{}
	}
	if errors.Is(err, errUnfit) {
		s.n.avoid = time.Now().Add(avoidFor)
		s.p.s.log.Warn("other node is left alone", "peer", s.n.Name, "blob", s.blob.String(), "err", err)
	}
	return fmt.Errorf("%w: %s: %w", ErrPeer, s.n.Name, err)
}

// body is what a node sends. Reading fails if it stalls, drips or sends more than it may.
type body struct {
	r       io.ReadCloser
	ctx     context.Context
	cancel  context.CancelCauseFunc
	timer   *time.Timer
	stall   time.Duration // see Swarm
	release func()
	judge   func(error) error // nil: the caller does

	size   int64 // that the node says, -1 if it does not
	left   int64
	got    int64
	waited time.Duration // in reads: a slow disk on our side is not the node's fault
}

func (b *body) Read(p []byte) (int, error) {
	began := time.Now()
	b.timer.Reset(b.stall)
	n, err := b.r.Read(p)
	b.timer.Stop()
	b.waited += time.Since(began)
	b.got += int64(n)
	switch {
	case b.got > b.left:
		n, err = 0, fmt.Errorf("%w: sends more than %d bytes", errUnfit, b.left)
	case err != nil && !errors.Is(err, io.EOF):
		err = b.because(err)
	case b.waited > b.stall && float64(b.got) < b.waited.Seconds()*slowest:
		err = fmt.Errorf("%w: sent %d bytes in %s", errUnfit, b.got, b.waited)
	}
	switch {
	case b.judge == nil && errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF // Blob reads no further than the size
	case b.judge != nil && !errors.Is(err, io.EOF):
		err = b.judge(err)
	}
	return n, err
}

// because is why the request was cancelled, if that was our doing.
func (b *body) because(err error) error {
	if cause := context.Cause(b.ctx); errors.Is(cause, errUnfit) {
		return cause
	}
	return err
}

func (b *body) end() {
	b.timer.Stop()
	b.cancel(nil)
	b.release()
}

// Close ends the request.
func (b *body) Close() error {
	err := b.r.Close()
	b.end()
	return err
}
