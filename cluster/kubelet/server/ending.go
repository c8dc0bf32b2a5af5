package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// told connects to a runtime's streaming server for exec and attach, and sees to it that the client is told
// when that server dies before the command ends.
//
// From version 4 of the protocol on, how the command ended comes on a stream of its own, success too. Clients
// take the end of that stream without a word for success: kubectl would exit with 0. So if the connection
// ends and no status has come, one is put at its end.
func told() http.RoundTripper {
	return &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &tellingConn{Conn: conn, from: bufio.NewReader(conn), closed: make(chan struct{})}, nil
		},
	}
}

// statusStream is the number of the stream that the status comes on: the protocol's clients make it first,
// and SPDY numbers a client's streams 1, 3, 5… (SPDY/3.1, 2.3.2).
const statusStream = 1

// tellingConn passes on what it reads in whole frames, so that one may be added.
type tellingConn struct {
	net.Conn
	from *bufio.Reader
	next bytes.Buffer // to be read
	rest int64        // of a long frame, still to be passed on

	upgraded bool // past the HTTP answer
	speaks   bool // the protocol has a status
	told     bool // it has come
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

// linger is how long the connection seems to go on after the status was added, unless the client closes it.
// Who learns of the end at the same time may miss the status.
const linger = 10 * time.Second

// longFrame is passed on in pieces, bytes. The status is short.
const longFrame = 1 << 20

// Read implements net.Conn. It is called by one goroutine.
func (c *tellingConn) Read(p []byte) (int, error) {
	for c.next.Len() == 0 {
		if c.rest > 0 {
			n, err := c.from.Read(p[:min(int64(len(p)), c.rest)])
			c.rest -= int64(n)
			return n, err
		}
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

// frame reads the next frame (SPDY/3.1, 2.2): of data, the number of its stream comes first; of control, a bit
// that is set. Then follow flags, and the length.
func (c *tellingConn) frame() error {
	header := make([]byte, 8)
	if _, err := io.ReadFull(c.from, header); err != nil {
		return err
	}
	length := int64(binary.BigEndian.Uint32(header[4:]) & 0xffffff)
	if binary.BigEndian.Uint32(header) == statusStream && length > 0 {
		c.told = true
	}
	if length > longFrame {
		c.next.Write(header)
		c.rest = length
		return nil
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(c.from, body); err != nil {
		return err
	}
	c.next.Write(header)
	c.next.Write(body)
	return nil
}

// lost are frames with the status of a command whose end is not known, and with the end of all streams. Clients
// ignore the end of one that they do not have.
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
