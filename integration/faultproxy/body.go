package faultproxy

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
)

type faultKey struct{}

func withFault(ctx context.Context, f Fault) context.Context {
	return context.WithValue(ctx, faultKey{}, f)
}

// breakBody spoils an answer as its request's fault says.
func (p *Proxy) breakBody(resp *http.Response) error {
	f, _ := resp.Request.Context().Value(faultKey{}).(Fault)
	if f.Break == Truncate {
		// Without a length the end of what is sent is the end.
		resp.ContentLength = -1
		resp.Header.Del("Content-Length")
	}
	resp.Body = &body{ReadCloser: resp.Body, fault: f, sent: &p.sent}
	return nil
}

// body breaks when it gets to the fault's place.
type body struct {
	io.ReadCloser
	fault Fault
	read  int64
	sent  *atomic.Int64
}

func (b *body) Read(p []byte) (int, error) {
	left := b.fault.At - b.read
	switch b.fault.Break {
	case Cut, Truncate:
		if left <= 0 && b.fault.Break == Truncate {
			return 0, io.EOF
		}
		if left <= 0 {
			return 0, io.ErrUnexpectedEOF
		}
		p = p[:min(int64(len(p)), left)]
	}
	n, err := b.ReadCloser.Read(p)
	if b.fault.Break == Corrupt && left >= 0 && left < int64(n) {
		p[left] ^= 0x40
	}
	b.read += int64(n)
	b.sent.Add(int64(n))
	return n, err
}
