package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// withExitStatus returns where a runtime serves the streams of exec and attach, and a transport
// that connects to it. The transport tells the client when the runtime's server dies before the
// command ends.
//
// From version 4 of the protocol on, how the command ended comes on a stream of its own, success
// too. Clients take the end of that stream without a word for success: kubectl would exit with 0.
// So if the connection ends and no status has come, one is put at its end.
//
// The frames of the protocol are inside TLS. So the transport does TLS itself, with config, and
// the URL that is returned is one without TLS: otherwise the proxy would do TLS on top of the
// transport's connections.
func withExitStatus(target *url.URL, config *tls.Config) (*url.URL, http.RoundTripper) {
	dial := (&net.Dialer{}).DialContext
	if target.Scheme == "https" {
		dial = (&tls.Dialer{Config: config}).DialContext
		plain := *target
		plain.Scheme, plain.Host = "http", withPort(target)
		target = &plain
	}
	return target, &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &tellingConn{Conn: conn, from: bufio.NewReader(conn), closed: make(chan struct{})}, nil
		},
	}
}

// withPort returns the host and the port of an https URL.
func withPort(target *url.URL) string {
	if target.Port() != "" {
		return target.Host
	}
	return net.JoinHostPort(target.Hostname(), "443")
}

// statusStream is the number of the stream that the status comes on: the protocol's clients make it
// first, and SPDY numbers a client's streams 1, 3, 5… (SPDY/3.1, 2.3.2).
const statusStream = 1

// tellingConn passes on what it reads in whole frames, so that one may be added.
type tellingConn struct {
	net.Conn
	from *bufio.Reader
	next bytes.Buffer // to be read
	data dataFrame    // the one that is being passed on

	upgraded bool // past the HTTP answer
	speaks   bool // the protocol has a status
	told     bool // it has come, to the end of a frame
	lost     bool // it has been added
	err      error

	once   sync.Once
	closed chan struct{}
}

// Close implements net.Conn.
func (c *tellingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// linger is how long the connection stays open after the status was added, unless the client
// closes it. A client that sees the status and the end at the same time may miss the status.
const linger = 10 * time.Second

// A frame of data is passed on in frames of at most maxData bytes. Each is read whole first: inside
// a frame that is cut short, no status can be added. Frames of control cannot be divided; they have
// at most maxControl bytes.
const (
	maxData    = 64 << 10
	maxControl = 1 << 20
)

// dataFrame is a frame of data that has been read in part.
type dataFrame struct {
	stream uint32
	flags  byte
	rest   int // bytes to come
}

// Read implements net.Conn. It is called by one goroutine.
func (c *tellingConn) Read(p []byte) (int, error) {
	for c.next.Len() == 0 {
		if c.err != nil {
			if c.lost {
				select {
				case <-c.closed:
				case <-time.After(linger):
				}
			}
			return 0, c.err
		}
		if !c.upgraded {
			c.err = c.answer()
			continue
		}
		if !c.speaks {
			return c.from.Read(p)
		}
		if c.err = c.frame(); c.err != nil && !c.told {
			c.next.Write(lost())
			c.lost, c.err = true, io.EOF
		}
	}
	return c.next.Read(p)
}

// answer passes the HTTP answer on, and looks which protocol it chooses.
func (c *tellingConn) answer() error {
	for {
		line, err := c.from.ReadSlice('\n')
		c.next.Write(line)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return err
		}
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		if http.CanonicalHeaderKey(string(name)) == protocolVersion {
			switch string(bytes.TrimSpace(value)) {
			case remotecommand.StreamProtocolV4Name, remotecommand.StreamProtocolV5Name:
				c.speaks = true
			}
		}
		if len(bytes.TrimSpace(line)) == 0 {
			c.upgraded = true
			return nil
		}
	}
}

const protocolVersion = "X-Stream-Protocol-Version"

// frame reads the next frame (SPDY/3.1, 2.2), or the next piece of a long one. A frame of data
// starts with the number of its stream, one of control with a bit that is set. Then follow flags,
// and the length.
func (c *tellingConn) frame() error {
	if c.data.rest > 0 {
		return c.piece()
	}
	header := make([]byte, 8)
	if _, err := io.ReadFull(c.from, header); err != nil {
		return err
	}
	length := int(binary.BigEndian.Uint32(header[4:]) & 0xffffff)
	if header[0]&0x80 == 0 {
		c.data = dataFrame{stream: binary.BigEndian.Uint32(header), flags: header[4], rest: length}
		return c.piece()
	}
	if length > maxControl {
		return fmt.Errorf("stream from the runtime: a control frame of %d bytes: at most %d are read", length, maxControl)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(c.from, body); err != nil {
		return err
	}
	c.next.Write(header)
	c.next.Write(body)
	return nil
}

// piece passes a piece of a frame of data on as a frame of its own. Only the last piece has the
// flags: they say that the stream ends.
func (c *tellingConn) piece() error {
	d := &c.data
	body := make([]byte, min(d.rest, maxData))
	if _, err := io.ReadFull(c.from, body); err != nil {
		return err
	}
	d.rest -= len(body)
	word := uint32(len(body))
	if d.rest == 0 {
		word |= uint32(d.flags) << 24
		c.told = c.told || d.stream == statusStream && len(body) > 0
	}
	c.next.Write(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, d.stream), word))
	c.next.Write(body)
	return nil
}

// lost are frames with the status of a command whose end is not known, and with the end of all
// streams. Clients ignore the end of one that they do not have.
func lost() []byte {
	const fin, lastStream = 1, 9 // standard input, output and error, and the terminal's size
	status, err := json.Marshal(metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
		Message: "the container runtime ended the connection before the command did; how the command ended is not known",
	})
	if err != nil {
		return nil // it has no field that cannot be encoded
	}
	frames := binary.BigEndian.AppendUint32(nil, statusStream)
	frames = binary.BigEndian.AppendUint32(frames, fin<<24|uint32(len(status)))
	frames = append(frames, status...)
	for stream := uint32(statusStream + 2); stream <= lastStream; stream += 2 {
		frames = binary.BigEndian.AppendUint32(frames, stream)
		frames = binary.BigEndian.AppendUint32(frames, fin<<24)
	}
	return frames
}
