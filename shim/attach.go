package shim

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/containerlog"
)

// Attach implements api.ShimService.
func (s *Service) Attach(ctx context.Context, r *api.AttachRequest) (*api.AttachResponse, error) {
	c, err := s.get(r.Id)
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	if !c.record().Log {
		return nil, fmt.Errorf("attach container %s: %w: its stdio are the caller's FIFOs", c.id, errPrecondition)
	}
	if err := c.attach(ctx, r); err != nil {
		return nil, fmt.Errorf("attach container %s: %w", c.id, err)
	}
	return &api.AttachResponse{}, nil
}

// attach returns when the container's init has ended and its output is delivered, or
// when the caller has closed all his FIFOs, or when ctx ends.
func (c *container) attach(ctx context.Context, r *api.AttachRequest) error {
	outputs := map[string]string{stdoutName: r.Stdout, stderrName: r.Stderr}
	if c.record().Terminal {
		delete(outputs, stderrName)
	}
	var users sync.WaitGroup // of the caller's FIFOs
	var readers []*containerlog.Reader
	var in *os.File
	defer func() {
		for _, rd := range readers {
			rd.Stop()
		}
		if in != nil {
			in.Close()
		}
		users.Wait()
	}()
	for stream, path := range outputs {
		if path == "" {
			continue
		}
		f, err := openPolled(path, unix.O_WRONLY)
		if err != nil {
			return fmt.Errorf("%w: %w", errInvalid, err)
		}
		rd := c.stdio.out.Add(stream, f, c.log)
		readers = append(readers, rd)
		users.Go(func() {
			awaitReaderGone(f)
			f.Close()
			rd.End()
			<-rd.Gone()
		})
	}
	if r.Stdin != "" {
		var err error
		if in, err = openPolled(r.Stdin, unix.O_RDONLY); err != nil {
			return fmt.Errorf("%w: %w", errInvalid, err)
		}
		sink, err := c.stdio.input()
		if err != nil {
			return err
		}
		users.Go(func() { c.copyInput(ctx, in, sink) })
	}
	gone := make(chan struct{})
	go func() {
		users.Wait()
		close(gone)
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-gone:
		return nil
	case <-c.init.exited:
	}
	// The output that init left has been handed to the readers before its exit.
	for _, rd := range readers {
		select {
		case <-rd.Gone():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// copyInput copies what is typed into init's stdin until either side is closed.
func (c *container) copyInput(ctx context.Context, in, sink *os.File) {
	if sink == nil { // no stdin: what is typed goes nowhere
		_, _ = io.Copy(io.Discard, in)
		return
	}
	ended := context.AfterFunc(ctx, func() { sink.Close() }) // a write that is stuck ends
	defer ended()
	defer sink.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-c.init.exited:
			sink.Close()
			in.Close()
		case <-stop:
		}
	}()
	buf := make([]byte, 4<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if _, err := sink.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			break
		}
	}
	if c.record().StdinOnce && ctx.Err() == nil {
		if err := c.stdio.closeInput(); err != nil {
			c.log.Error("cannot record the end of stdin", "err", err)
		}
	}
}
