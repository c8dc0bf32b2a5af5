package shimv2

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	apievents "github.com/containerd/containerd/api/events"
	ttrpcevents "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// events is the service to which shims report what happens: by ttrpc (TTRPC_ADDRESS), or by a
// program that they execute (-publish-binary). Exits are asked for (Task.Wait), so that none is
// missed; what is taken from here is that a container ran out of memory.
type events struct {
	mu     sync.Mutex
	server *ttrpc.Server // nil while no one listens
	served chan struct{} // closed when it has ended
	oom    func(id string)
}

var _ ttrpcevents.TTRPCEventsService = (*events)(nil)

func (*events) path(root string) string { return filepath.Join(root, "events") }

// listen starts to serve, unless that has started already.
func (s *events) listen(root string, oom func(id string)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return nil
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("listen for events: %w", err)
	}
	if err := os.Remove(s.path(root)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("listen for events: %w", err)
	}
	l, err := net.Listen("unix", s.path(root))
	if err != nil {
		return fmt.Errorf("listen for events: %w", err)
	}
	server, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser()))
	if err != nil {
		l.Close()
		return fmt.Errorf("listen for events: %w", err)
	}
	s.oom = oom
	ttrpcevents.RegisterTTRPCEventsService(server, s)
	s.server, s.served = server, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		_ = server.Serve(context.Background(), l) // ErrServerClosed, by close
	}(s.served)
	return nil
}

func (s *events) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return nil
	}
	err := s.server.Close()
	<-s.served
	s.server = nil
	return err
}

// Forward implements the Events service.
func (s *events) Forward(_ context.Context, r *ttrpcevents.ForwardRequest) (*emptypb.Empty, error) {
	ev := r.GetEnvelope().GetEvent()
	if !strings.HasSuffix(ev.GetTypeUrl(), "containerd.events.TaskOOM") {
		return &emptypb.Empty{}, nil
	}
	var out apievents.TaskOOM
	if err := proto.Unmarshal(ev.GetValue(), &out); err != nil {
		return nil, fmt.Errorf("event of type %s: %w", ev.GetTypeUrl(), err)
	}
	s.oom(out.ContainerID)
	return &emptypb.Empty{}, nil
}
