package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

// happening is an event in the output of `coracle events`.
type happening struct {
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
	var format output
	var namespace string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "print what becomes of pods and containers, as it happens",
		Long: `Print what becomes of pods and containers, one line each, until interrupted.
With -o json each line is an object, with -o yaml a document. What was before is not
shown: 'coracle pods' and 'coracle ps -a' list what there is.`,
		Example: `  coracle events
  coracle events -n shop
  coracle events -o json | jq -r 'select(.exitCode > 0) | .pod'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return w.call(cmd, func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
				stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
				if err != nil {
					return err
				}
				if _, err := stream.Header(); err != nil {
					return err
				}
				write, err := format.stream(cmd.OutOrStdout())
				if err != nil {
					return err
				}
				known, err := newRoster(ctx, c)
				if err != nil {
					return err
				}
				for {
					e, err := stream.Recv()
					if ctx.Err() != nil {
						return nil // that is how this command ends
					}
					if err != nil {
						return err
					}
					h := known.name(e)
					if namespace != "" && h.Namespace != namespace {
						continue
					}
					if err := write(h, h.line()); err != nil {
						return err
					}
				}
			})
		},
	}
	format.define(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only of pods of this namespace")
	return cmd
}

// stream returns a function that prints one of many things, each as it comes: text for people.
func (o output) stream(out io.Writer) (func(v any, text string) error, error) {
	switch o {
	case "json":
		return func(v any, _ string) error { return json.NewEncoder(out).Encode(v) }, nil
	case "yaml":
		return func(v any, _ string) error {
			data, err := yaml.Marshal(v)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "---\n%s", data)
			return err
		}, nil
	case "table":
		return func(_ any, text string) error {
			_, err := fmt.Fprintln(out, text)
			return err
		}, nil
	}
	return nil, o.unknown()
}

// roster is who is who by id: an event about something that is gone by the time it is sent has the
// id alone.
type roster map[string]happening

func newRoster(ctx context.Context, c runtimeapi.RuntimeServiceClient) (roster, error) {
	all, err := takeInventory(ctx, c)
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
