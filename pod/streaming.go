package pod

import (
	"context"
	"io"
	"time"

	"github.com/coracle-project/coracle/pod/streams"
	"github.com/coracle-project/coracle/shim/client"
)

// ExecSync runs a command in a running container to its end: see streams.Server.
func (m *Manager) ExecSync(ctx context.Context, r streams.ExecRequest, timeout time.Duration) (streams.ExecSyncResult, error) {
	return m.streams.ExecSync(ctx, r, timeout)
}

// Exec runs a command in a running container and copies its streams until it has ended.
func (m *Manager) Exec(ctx context.Context, r streams.ExecRequest) (exitCode int32, err error) {
	return m.streams.Exec(ctx, r)
}

// Attach copies the streams of the container's own process until it has exited, the streams are
// gone or ctx ends.
func (m *Manager) Attach(ctx context.Context, id string, tty bool, s client.Streams) error {
	return m.streams.Attach(ctx, id, tty, s)
}

// CheckExec says whether Exec could start now.
func (m *Manager) CheckExec(id string) error { return m.streams.CheckExec(id) }

// CheckAttach says whether Attach could start now.
func (m *Manager) CheckAttach(id string) error { return m.streams.CheckAttach(id) }

// ReopenLog has the container's log file closed and opened again, after it was renamed.
func (m *Manager) ReopenLog(ctx context.Context, id string) error {
	return m.streams.ReopenLog(ctx, id)
}

// CheckPod says whether PortForward could start now.
func (m *Manager) CheckPod(podID string) error { return m.streams.CheckPod(podID) }

// PortForward connects stream to a TCP port on the pod's loopback and copies until both sides have
// ended or ctx ends. It closes stream.
func (m *Manager) PortForward(ctx context.Context, podID string, port int32, stream io.ReadWriteCloser) error {
	return m.streams.PortForward(ctx, podID, port, stream)
}
