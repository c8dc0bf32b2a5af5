package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/output"
)

// happening is an event in the output of `coracle events`.
type happening struct {
	Node      string    `json:"node,omitempty"` // if the machine has several
	Time      time.Time `json:"time"`
	What      string    `json:"what"` // created, started, stopped, deleted
	Kind      string    `json:"kind"` // pod or container
	ID        string    `json:"id"`
	Namespace string    `json:"namespace,omitempty"`
	Pod       string    `json:"pod,omitempty"`
	Container string    `json:"container,omitempty"`
	ExitCode  *int32    `json:"exitCode,omitempty"`
	Reason    string    `json:"reason,omitempty"`
}

func (w *workload) eventsCommand() *cobra.Command {
	var format output.Format
	var namespace string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "print events of pods and containers as they happen",
		Long: `Print events of pods and containers, one line each, until interrupted. With -o json
each line is an object, with -o yaml a document. Earlier events are not shown:
'coracle pods' and 'coracle ps -a' show the current state. If the machine has several nodes, those
of all are printed.`,
		Example: `  coracle events
  coracle events -n shop
  coracle events -o json | jq -r 'select(.exitCode > 0) | .pod'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			write := format.Stream(cmd.OutOrStdout())
			var mu sync.Mutex // guards what is written
			_, err := onAll(w, cmd, func(ctx context.Context, n machineNode, c runtimeapi.RuntimeServiceClient) (none struct{}, err error) {
				print := func(h happening) error {
					if namespace != "" && h.Namespace != namespace {
						return nil
					}
					h.Node = n.name
					mu.Lock()
					defer mu.Unlock()
					return write(h, h.line())
				}
				tell := func(what string) {
					mu.Lock()
					defer mu.Unlock()
					_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "coracle:", n.named(errors.New(what)))
				}
				err = n.follow(ctx, c, print, tell)
				switch {
				case ctx.Err() != nil:
					return none, nil // that is how this command ends
				case n.name != "": // the others are followed
					tell(n.daemon.Plain(err).Error())
				}
				return none, err
			})
			return err
		},
	}
	format.Define(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only of pods of this namespace")
	return cmd
}

// follow prints events, also of a coracled that is started again, until ctx ends or there are no
// more. It returns why, never nil.
func (w *workload) follow(ctx context.Context, c runtimeapi.RuntimeServiceClient, print func(happening) error, tell func(string)) error {
	following, err := followEvents(ctx, c, print)
	for began := following; began && (status.Code(err) == codes.Unavailable || following && ended(err)); {
		if following {
			tell("the stream of events ended, and is followed again as soon as coracled answers; what happens meanwhile is not shown")
		}
		following, err = followEvents(ctx, c, print, grpc.WaitForReady(true))
	}
	return err
}

// followEvents calls print for each event until the stream ends, and returns why it did and whether
// there was one.
func followEvents(ctx context.Context, c runtimeapi.RuntimeServiceClient, print func(happening) error,
	how ...grpc.CallOption,
) (following bool, err error) {
	stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, how...)
	if err != nil {
		return false, err
	}
	if _, err := stream.Header(); err != nil {
		return false, err
	}
	known, err := newRoster(ctx, c, how...)
	if err != nil {
		return false, err
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			return true, err
		}
		if err := print(known.name(e)); err != nil {
			return true, err
		}
	}
}

// ended says whether a stream of events ended with the coracled that had it, which its keeper or
// systemd starts again, or because it was not read quickly enough.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || status.Code(err) == codes.Unavailable || status.Code(err) == codes.ResourceExhausted
}

// roster is who is who by id: an event about something that is gone by the time it is sent has the
// id alone.
type roster map[string]happening

func newRoster(ctx context.Context, c runtimeapi.RuntimeServiceClient, how ...grpc.CallOption) (roster, error) {
	all, err := takeInventory(ctx, c, how...)
	if err != nil {
		return nil, err
	}
	r := roster{}
	for _, p := range all.pods {
		r.add(p.GetId(), p.GetMetadata(), "")
	}
	for _, ctr := range all.containers {
		r.add(ctr.GetId(), all.podOf(ctr).GetMetadata(), ctr.GetMetadata().GetName())
	}
	return r, nil
}

func (r roster) add(id string, pod *runtimeapi.PodSandboxMetadata, container string) {
	h := happening{Kind: "container", ID: id, Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container}
	if container == "" {
		h.Kind = "pod"
	}
	r[id] = h
}

// name says what an event is about: its id is a container's or the pod's.
func (r roster) name(e *runtimeapi.ContainerEventResponse) happening {
	if pod := e.GetPodSandboxStatus(); pod != nil {
		r.add(pod.GetId(), pod.GetMetadata(), "")
		for _, s := range e.GetContainersStatuses() {
			r.add(s.GetId(), pod.GetMetadata(), s.GetMetadata().GetName())
		}
	}
	h, ok := r[e.GetContainerId()]
	if !ok {
		h = happening{Kind: "container", ID: e.GetContainerId()}
	}
	kind := strings.TrimSuffix(strings.TrimPrefix(e.GetContainerEventType().String(), "CONTAINER_"), "_EVENT")
	h.Time, h.What = instant(e.GetCreatedAt()), strings.ToLower(kind)
	switch e.GetContainerEventType() {
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		for _, s := range e.GetContainersStatuses() {
			if s.GetId() == e.GetContainerId() {
				code := s.GetExitCode()
				h.ExitCode, h.Reason = &code, s.GetReason()
			}
		}
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		delete(r, e.GetContainerId())
	}
	return h
}

// line is an event for people; the columns that come first have the same width always.
func (h happening) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-8s  ", h.Time.Local().Format("15:04:05.000"), h.What)
	if h.Node != "" {
		b.WriteString(h.Node + "  ")
	}
	switch {
	case h.Pod == "":
		fmt.Fprintf(&b, "%s %s", h.Kind, shortID(h.ID)) // it came and went while we were not looking
	case h.Container == "":
		fmt.Fprintf(&b, "%s %s/%s (%s)", h.Kind, h.Namespace, h.Pod, shortID(h.ID))
	default:
		fmt.Fprintf(&b, "%s %s/%s/%s (%s)", h.Kind, h.Namespace, h.Pod, h.Container, shortID(h.ID))
	}
	if h.ExitCode != nil {
		fmt.Fprintf(&b, " exit code %d, %s", *h.ExitCode, h.Reason)
	}
	return b.String()
}
