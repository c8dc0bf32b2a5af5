package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/crilog"
)

// logFlags are those of `coracle logs`.
type logFlags struct {
	follow, timestamps, previous bool
	tail                         int
	since                        string
}

func (w *workload) logsCommand() *cobra.Command {
	var f logFlags
	cmd := &cobra.Command{
		Use:   "logs CONTAINER",
		Short: "print a container's log",
		Long: `Print what a container wrote to its standard output and standard error, each to
ours. With -f, continue until the container ends; rotated log files are read to their
end.

` + howToName,
		Example: `  coracle logs web
  coracle logs -f --tail 20 web/nginx
  coracle logs --since 10m -t kube-system/coredns/coredns
  coracle logs -p web`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: w.complete(false, func(all inventory) []string { return all.containerNames(false) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			since, err := parseSince(f.since, time.Now())
			if err != nil {
				return err
			}
			return w.lookForContainer(cmd, args[0], func(ctx context.Context, c runtimeapi.RuntimeServiceClient, all inventory,
				ctr *runtimeapi.Container,
			) error {
				if f.previous {
					if ctr, err = all.previous(ctr); err != nil {
						return err
					}
				}
				return f.print(ctx, c, ctr.GetId(), since, cmd.OutOrStdout(), cmd.ErrOrStderr())
			})
		},
	}
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "go on until the container ends")
	cmd.Flags().BoolVarP(&f.timestamps, "timestamps", "t", false, "begin each line with its time")
	cmd.Flags().BoolVarP(&f.previous, "previous", "p", false, "of the attempt before the last")
	cmd.Flags().IntVar(&f.tail, "tail", -1, "only so many of the last lines; -1: all")
	cmd.Flags().StringVar(&f.since, "since", "", "only what is not older: a duration like 10m, or a time like 2026-01-02T15:04:05Z")
	return cmd
}

// howToName is part of the help of commands that take a container.
const howToName = `A container is named by its id or the beginning of it, or as CONTAINER,
POD/CONTAINER or NAMESPACE/POD/CONTAINER; a pod's name will do if it has only one.`

// parseSince reads --since; empty is the beginning of time.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	return time.Time{}, fmt.Errorf("--since %q: it is a duration like 10m or 1h30m, or a time like %s", s, now.UTC().Format(time.RFC3339))
}

func (f *logFlags) print(ctx context.Context, c runtimeapi.RuntimeServiceClient, id string, since time.Time, stdout,
	stderr io.Writer,
) error {
	o := crilog.Options{Tail: f.tail, Since: since}
	if f.follow {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		ended, err := whenEnded(ctx, c, id)
		if err != nil {
			return err
		}
		o.Ended = ended
	}
	r, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return err
	}
	path := r.GetStatus().GetLogPath()
	if path == "" {
		return fmt.Errorf("container %s keeps no log: its creator named no file", shortID(id))
	}
	p := newLogPrinter(stdout, stderr, f.timestamps)
	o.Idle = p.flush
	return errors.Join(crilog.Read(ctx, path, o, p.print), p.flush())
}

// whenEnded returns a channel that is closed when the container does not run any more. It is
// told by the daemon's events: nothing is polled. A daemon that is started again
// meanwhile is waited for.
func whenEnded(ctx context.Context, c runtimeapi.RuntimeServiceClient, id string) (<-chan struct{}, error) {
	wait, err := awaitEnd(ctx, c, id)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		for wait() != nil && ctx.Err() == nil {
			if wait, err = awaitEnd(ctx, c, id, grpc.WaitForReady(true)); err != nil {
				return // it is removed, or we are
			}
		}
	}()
	return ended, nil
}

// awaitEnd returns a function that returns nil when the container has ended, or why it cannot know.
func awaitEnd(ctx context.Context, c runtimeapi.RuntimeServiceClient, id string, opts ...grpc.CallOption) (wait func() error, err error) {
	events, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, opts...)
	if err != nil {
		return nil, err
	}
	// After the header nothing escapes us.
	if _, err := events.Header(); err != nil {
		return nil, err
	}
	r, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id}, opts...)
	if err != nil {
		return nil, err
	}
	return func() error {
		if r.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return nil
		}
		for {
			e, err := events.Recv()
			if err != nil {
				return err
			}
			kind := e.GetContainerEventType()
			if e.GetContainerId() == id &&
				(kind == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT || kind == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT) {
				return nil
			}
		}
	}, nil
}
