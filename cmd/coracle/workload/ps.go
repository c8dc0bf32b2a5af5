package workload

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/output"
)

// containerLine is a container in the output of `coracle ps`.
type containerLine struct {
	Node      string    `json:"node,omitempty"` // if the machine has several
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Pod       string    `json:"pod"`
	Namespace string    `json:"namespace"`
	PodID     string    `json:"podID"`
	Attempt   uint32    `json:"attempt"`
	State     string    `json:"state"`
	ExitCode  *int32    `json:"exitCode,omitempty"` // when it has exited
	Reason    string    `json:"reason,omitempty"`
	Message   string    `json:"message,omitempty"`
	Image     string    `json:"image"`
	ImageID   string    `json:"imageID"`
	LogPath   string    `json:"logPath"`
	Created   time.Time `json:"created"`
	Started   time.Time `json:"started,omitzero"`
	Finished  time.Time `json:"finished,omitzero"`
}

func (w *workload) psCommand() *cobra.Command {
	var (
		format output.Format
		chosen selection
		all    bool
	)
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "list the running containers",
		Long: `List the running containers; with -a also ended ones, with their exit codes.
RESTARTS is the number of earlier attempts.`,
		Example: `  coracle ps
  coracle ps -a -n kube-system
  coracle ps -a -o json | jq -r '.[] | select(.exitCode > 0) | .pod'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list := func(ctx context.Context, node string, c runtimeapi.RuntimeServiceClient, v inventory) ([]containerLine, error) {
				there, err := containerLines(ctx, c, v, func(ctr *runtimeapi.Container) bool {
					return (all || ctr.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING) && chosen.matches(v.podOf(ctr))
				})
				for i := range there {
					there[i].Node = node
				}
				return there, err
			}
			return listAll(w, cmd, &format, list, containerRows)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also containers that do not run")
	format.Define(cmd)
	chosen.define(w, cmd)
	return cmd
}

// containerLines asks how each container is; one that goes meanwhile is left out.
func containerLines(ctx context.Context, c runtimeapi.RuntimeServiceClient, v inventory,
	wanted func(*runtimeapi.Container) bool,
) ([]containerLine, error) {
	lines := []containerLine{}
	for _, ctr := range v.containers {
		if !wanted(ctr) {
			continue
		}
		r, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: ctr.GetId()})
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines = append(lines, containerLineOf(r.GetStatus(), v.podOf(ctr), ctr.GetPodSandboxId()))
	}
	return lines, nil
}

func containerLineOf(s *runtimeapi.ContainerStatus, pod *runtimeapi.PodSandbox, podID string) containerLine {
	l := containerLine{
		ID: s.GetId(), Name: s.GetMetadata().GetName(), Attempt: s.GetMetadata().GetAttempt(),
		Pod: pod.GetMetadata().GetName(), Namespace: pod.GetMetadata().GetNamespace(), PodID: podID,
		State: stateWord(s.GetState()), Reason: s.GetReason(), Message: s.GetMessage(),
		Image: s.GetImage().GetUserSpecifiedImage(), ImageID: s.GetImageId(), LogPath: s.GetLogPath(),
		Created: instant(s.GetCreatedAt()), Started: instant(s.GetStartedAt()), Finished: instant(s.GetFinishedAt()),
	}
	if l.Image == "" {
		l.Image = s.GetImage().GetImage()
	}
	if s.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
		code := s.GetExitCode()
		l.ExitCode = &code
	}
	return l
}

// instant is CRI's time, for which 0 is none.
func instant(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos).UTC()
}

func stateWord(s runtimeapi.ContainerState) string {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return "created"
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return "running"
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return "exited"
	}
	return "unknown"
}

func containerRows(out io.Writer, lines []containerLine) {
	row := output.NodeRow(out, slices.ContainsFunc(lines, func(l containerLine) bool { return l.Node != "" }))
	row("NODE", "CONTAINER ID", "NAMESPACE", "POD", "NAME", "STATE", "RESTARTS", "SINCE", "IMAGE")
	for _, l := range lines {
		state, since := l.State, l.Created
		switch {
		case l.ExitCode != nil:
			state, since = fmt.Sprintf("exited (%d)", *l.ExitCode), l.Finished
			if l.Reason == "OOMKilled" || l.Reason == "StartError" {
				state += " " + l.Reason
			}
		case !l.Started.IsZero():
			since = l.Started
		}
		row(l.Node, shortID(l.ID), l.Namespace, l.Pod, l.Name, state, l.Attempt, output.Ago(since), output.OneLine(l.Image, 60))
	}
}

// ratio is so many of so many.
func ratio(some, all int) string { return fmt.Sprintf("%d/%d", some, all) }
