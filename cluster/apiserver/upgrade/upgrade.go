// Package upgrade limits what the API server reads of the answer to a request for an upgraded
// connection: exec, attach, port-forward, and connections through the proxy of pods, Services,
// nodes and aggregated servers.
//
// Upstream's handlers dial for such a request themselves, past http.Transport and its limits, and
// read the answer's header however long it is. They wait for the server to take the request and to
// answer however long that takes, also after the client has gone. A pod could make the API server's
// memory grow until it is killed. Here the connection that they read from fails if the header does
// not end within headerLimit and answerLimit, or before the client goes.
package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/proxy"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
)

// headerLimit is how long the header of an answer may be. An answer that refuses the upgrade is
// limited as a whole: upstream's SPDY client reads all of it into memory.
const headerLimit = 1 << 20

// answerLimit is how long connecting may take, and then the request and the answer's header. It is
// upstream's limit for requests that are not long-running.
const answerLimit = time.Minute

// statusLimit is how much of the status line is looked at.
const statusLimit = 64

// header is a connection that fails if the answer's header is too long or comes too late, or when
// the request ends. After the header of an answer that switches protocols it only passes on.
type header struct {
	net.Conn
	stop     func() bool // keeps the connection open when the request ends
	switched bool        // the header has ended, and nothing is limited any more
	ended    bool        // the header has ended
	left     int
	status   []byte // the beginning of the first line
	lines    int    // that have ended
	empty    bool   // the line so far is empty
}

// limit limits a connection for a request, which has the context.
func limit(ctx context.Context, conn net.Conn) net.Conn {
	_ = conn.SetDeadline(time.Now().Add(answerLimit)) // a connection that fails here fails when it is used, too
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return &header{Conn: conn, stop: stop, left: headerLimit, empty: true}
}

// Read implements net.Conn.
func (h *header) Read(b []byte) (int, error) {
	if h.switched {
		return h.Conn.Read(b)
	}
	if h.left == 0 {
		return 0, fmt.Errorf("the answer to the request for an upgraded connection is longer than %d bytes", headerLimit)
	}
	n, err := h.Conn.Read(b[:min(len(b), h.left)])
	h.left -= n
	if !h.ended {
		h.scan(b[:n])
		err = late(err)
	}
	if h.switched && err == nil {
		h.stop()
		err = h.SetDeadline(time.Time{})
	}
	return n, err
}

// Close implements net.Conn.
func (h *header) Close() error {
	h.stop()
	return h.Conn.Close()
}

// Write implements net.Conn.
func (h *header) Write(b []byte) (int, error) {
	n, err := h.Conn.Write(b)
	return n, late(err)
}

// late says what was late if a deadline has passed.
func late(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("no answer to the request for an upgraded connection within %v: %w", answerLimit, err)
	}
	return err
}

// scan looks for the header's end in the next bytes: an empty line, as net/textproto has it.
func (h *header) scan(b []byte) {
	for _, c := range b {
		if h.lines == 0 && len(h.status) < statusLimit {
			h.status = append(h.status, c)
		}
		switch {
		case c == '\n' && h.empty && h.lines > 0:
			h.ended, h.switched = true, switches(h.status)
			return
		case c == '\n':
			h.lines++
			h.empty = true
		case c != '\r':
			h.empty = false
		}
	}
}

// switches reports whether a status line is that of an answer that switches protocols, as
// net/http reads it.
func switches(line []byte) bool {
	_, status, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(" "))
	code, _, _ := strings.Cut(strings.TrimLeft(string(status), " "), " ")
	return code == "101"
}

// through returns a transport that upstream dials with for http. Its connections are those that
// upstream would dial with for scheme and transport, with the limit. Upstream sees http also where
// scheme is https: else it would do the TLS itself, and the header inside could not be limited.
func through(scheme string, transport http.RoundTripper) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		dialling, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		conn, err := proxy.DialURL(dialling, &url.URL{Scheme: scheme, Host: address}, transport)
		if err != nil {
			return nil, err
		}
		return limit(ctx, conn), nil
	}}
}

// Limit has a handler limit what it reads of answers to requests for upgraded connections. Other
// requests take the handler's transport as before.
func Limit(handler *proxy.UpgradeAwareHandler) {
	scheme := handler.Location.Scheme
	handler.UpgradeTransport = &dialer{through(scheme, handler.Transport), scheme}
}

// dialer implements proxy.UpgradeRequestRoundTripper. Upstream takes the scheme to dial from the
// request that WrapRequest returns.
type dialer struct {
	*http.Transport
	scheme string
}

// WrapRequest implements proxy.UpgradeRequestRoundTripper.
func (d *dialer) WrapRequest(req *http.Request) (*http.Request, error) {
	plain, location := *req, *req.URL
	if d.scheme == "https" && location.Port() == "" {
		location.Host = net.JoinHostPort(location.Hostname(), "443")
	}
	location.Scheme = "http"
	plain.URL = &location
	return &plain, nil
}

// WrappedRoundTripper is where upstream finds what to dial with.
func (d *dialer) WrappedRoundTripper() http.RoundTripper { return d.Transport }

// Kubelets returns a getter for exec, attach and port-forward, which only dial: their connections
// to kubelets have the limit.
func Kubelets(getter kubeletclient.ConnectionInfoGetter) kubeletclient.ConnectionInfoGetter {
	return kubelets{getter}
}

type kubelets struct {
	kubeletclient.ConnectionInfoGetter
}

// GetConnectionInfo implements client.ConnectionInfoGetter.
func (k kubelets) GetConnectionInfo(ctx context.Context, node types.NodeName) (*kubeletclient.ConnectionInfo, error) {
	info, err := k.ConnectionInfoGetter.GetConnectionInfo(ctx, node)
	if err != nil {
		return nil, err
	}
	limited := *info
	limited.Transport = through(info.Scheme, info.Transport)
	limited.InsecureSkipTLSVerifyTransport = limited.Transport // not used: it is for logs
	limited.Scheme = "http"
	return &limited, nil
}
