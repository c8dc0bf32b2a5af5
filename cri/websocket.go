package cri

import (
	"io"
	"net/http"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// The remote command protocol over WebSocket. Version 5 (KEP 4006) is version 4 with a signal
// that ends one stream: without it a client could not say that its input is over.
//
//	a message is the channel's number and data; 0 stdin, 1 stdout, 2 stderr, 3 the status (as JSON
//	since version 4), 4 terminal sizes as JSON, 255 with a channel's number ends that one
//
// In the base64 forms the number is a digit and the data are encoded.

// openWebSocket returns nil if the client has been told that it cannot be.
func openWebSocket(w http.ResponseWriter, r *http.Request, o remotecommand.Options) *session {
	channels := []wsstream.ChannelType{
		remotecommand.StreamStdIn:  wsstream.IgnoreChannel,
		remotecommand.StreamStdOut: wsstream.IgnoreChannel,
		remotecommand.StreamStdErr: wsstream.IgnoreChannel,
		remotecommand.StreamErr:    wsstream.WriteChannel,
		remotecommand.StreamResize: wsstream.ReadChannel,
	}
	if o.Stdin {
		channels[remotecommand.StreamStdIn] = wsstream.ReadChannel
	}
	if o.Stdout {
		channels[remotecommand.StreamStdOut] = wsstream.WriteChannel
	}
	if o.Stderr {
		channels[remotecommand.StreamStdErr] = wsstream.WriteChannel
	}
	const binary, base64 = wsstream.ChannelWebSocketProtocol, wsstream.Base64ChannelWebSocketProtocol
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		"":                                 {Binary: true, Channels: channels},
		binary:                             {Binary: true, Channels: channels},
		base64:                             {Binary: false, Channels: channels},
		"v4." + binary:                     {Binary: true, Channels: channels},
		"v4." + base64:                     {Binary: false, Channels: channels},
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: channels},
	})
	conn.SetIdleTimeout(streamIdle)
	protocol, streams, err := conn.Open(w, r)
	if err != nil {
		return nil
	}
	// Clients wait for a first message to know that they are connected.
	first := remotecommand.StreamErr
	switch {
	case o.Stdout:
		first = remotecommand.StreamStdOut
	case o.Stderr:
		first = remotecommand.StreamStdErr
	}
	_, _ = streams[first].Write(nil)
	s := &session{
		resize: streams[remotecommand.StreamResize], leaves: true, status: streams[remotecommand.StreamErr],
		asText: protocol == "" || protocol == binary || protocol == base64,
		close:  func() { _ = conn.Close() },
	}
	if o.Stdin {
		s.in = streams[remotecommand.StreamStdIn]
	}
	output := func(wanted bool, n int) io.WriteCloser {
		if !wanted {
			return nil
		}
		return streams[n]
	}
	s.out, s.errOut = output(o.Stdout, remotecommand.StreamStdOut), output(o.Stderr, remotecommand.StreamStdErr)
	return s
}
