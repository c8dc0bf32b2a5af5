package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	events "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// publishTimeout bounds the delivery of one event.
	publishTimeout = 10 * time.Second
	// maxEvent bounds an event; those of shims have a few hundred bytes.
	maxEvent = 1 << 20
)

// publish passes an event on that another shim has written to our standard input (a
// google.protobuf.Any): shims that report by executing a program are told to execute this one, as
// containerd tells them to execute containerd.
func publish(address string, args []string) error {
	fs := flag.NewFlagSet("publish", flag.ContinueOnError)
	topic := fs.String("topic", "", "topic of the event")
	namespace := fs.String("namespace", "", "containerd's namespace")
	if err := fs.Parse(args); err != nil {
		return err
	}
	raw, err := io.ReadAll(io.LimitReader(os.Stdin, maxEvent))
	if err != nil {
		return fmt.Errorf("publish: read event: %w", err)
	}
	var event anypb.Any
	if err := proto.Unmarshal(raw, &event); err != nil {
		return fmt.Errorf("publish: read event: %w", err)
	}
	nc, err := net.Dial("unix", strings.TrimPrefix(address, "unix://"))
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	c := ttrpc.NewClient(nc)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), publishTimeout)
	defer cancel()
	_, err = events.NewTTRPCEventsClient(c).Forward(ctx, &events.ForwardRequest{Envelope: &types.Envelope{
		Timestamp: timestamppb.Now(), Namespace: *namespace, Topic: *topic, Event: &event,
	}})
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}
