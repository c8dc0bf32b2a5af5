package shim

import (
	"context"
	"fmt"
	"os"

	"github.com/coracle-project/coracle/internal/version"
	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// ReopenLog implements api.ShimService.
func (s *Service) ReopenLog(_ context.Context, r *api.ReopenLogRequest) (*api.ReopenLogResponse, error) {
	c, err := s.get(r.Id)
	if err == nil {
		err = c.stdio.reopenLog()
	}
	if err != nil {
		return nil, fmt.Errorf("reopen log: %w", err)
	}
	return &api.ReopenLogResponse{}, nil
}

// List implements api.ShimService. A daemon asks once, at its start: a creation that the
// last one did not live to see the end of must not turn up afterwards.
func (s *Service) List(ctx context.Context, _ *api.ListRequest) (*api.ListResponse, error) {
	s.settle(ctx)
	res := &api.ListResponse{}
	for _, c := range s.all() {
		res.Containers = append(res.Containers, &api.ListResponse_Container{Id: c.id, PodId: c.record().PodID})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.unmanaged {
		res.Containers = append(res.Containers, &api.ListResponse_Container{Id: u.id, PodId: u.podID, Unmanaged: u.reason.Error()})
	}
	return res, nil
}

// Events implements api.ShimService.
func (s *Service) Events(ctx context.Context, _ *api.EventsRequest, stream api.Shim_EventsServer) error {
	err := s.events.subscribe(ctx, s.exits, stream.Send)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// exits are the events of all processes that have ended and are not deleted.
func (s *Service) exits() []*api.Event {
	var evs []*api.Event
	for _, c := range s.all() {
		if c.init.exitState() != nil && c.record().Phase != phaseDeleting {
			evs = append(evs, c.exitEvent("", c.init))
		}
		for _, e := range c.allExecs() {
			if p := e.process(); p != nil && p.exitState() != nil {
				evs = append(evs, c.exitEvent(e.id, p))
			}
		}
	}
	return evs
}

// Protocol is the value of InfoResponse.Protocol.
const Protocol = 3

// Features are what clients of this shim can rely on. A name never changes its meaning.
var Features = []string{
	"info",      // Info
	"launch",    // Launch
	"lock",      // the state directory is locked, see LockState
	"restart",   // SIGTERM ends the shim after the calls in progress, and the next one adopts
	"unmanaged", // List reports what could not be adopted, instead of removing it
}

// Info implements api.ShimService.
func (s *Service) Info(context.Context, *api.InfoRequest) (*api.InfoResponse, error) {
	res := &api.InfoResponse{Pid: uint32(os.Getpid()), Version: version.Number(), Protocol: Protocol, Features: Features}
	var err error
	if res.StartTime, err = pidfd.StartTime(os.Getpid()); err != nil {
		return nil, fmt.Errorf("info: %w", err)
	}
	return res, nil
}
