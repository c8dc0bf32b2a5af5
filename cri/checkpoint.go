package cri

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/convert"
	"github.com/coracle-project/coracle/cri/field"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// Checkpoints are made of containers and pods, and pods of them.
type Checkpoints interface {
	Checkpoint(ctx context.Context, id, location string, timeout time.Duration) error
	CheckpointPod(ctx context.Context, podID, dir string, ids []string) error
	RestorePod(ctx context.Context, dir string, c podconfig.Pod, containers []podconfig.Container) (string, []pod.Restored, error)
}

// CheckpointContainer saves a running container in an archive, and lets it go on.
func (s *service) CheckpointContainer(ctx context.Context,
	r *runtimeapi.CheckpointContainerRequest,
) (*runtimeapi.CheckpointContainerResponse, error) {
	if err := field.Required("container_id", r.GetContainerId()); err != nil {
		return nil, err
	}
	if err := field.Required("location", r.GetLocation()); err != nil {
		return nil, err
	}
	timeout, err := seconds("timeout", r.GetTimeout())
	if err != nil {
		return nil, err
	}
	if err := s.checkpoints.Checkpoint(ctx, r.GetContainerId(), r.GetLocation(), timeout); err != nil {
		return nil, err
	}
	return &runtimeapi.CheckpointContainerResponse{}, nil
}

// CheckpointPod saves containers of a pod at one moment.
func (s *service) CheckpointPod(ctx context.Context, r *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	if err := field.Required("pod_sandbox_id", r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	if err := field.Required("output_path", r.GetOutputPath()); err != nil {
		return nil, err
	}
	if err := limited(ctx, r.GetOptions()); err != nil {
		return nil, err
	}
	if err := s.checkpoints.CheckpointPod(ctx, r.GetPodSandboxId(), r.GetOutputPath(), r.GetContainerIds()); err != nil {
		return nil, err
	}
	return &runtimeapi.CheckpointPodResponse{}, nil
}

// RestorePod makes a pod whose containers go on from a checkpoint once they are started.
func (s *service) RestorePod(ctx context.Context, r *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	if err := field.Required("checkpoint_path", r.GetCheckpointPath()); err != nil {
		return nil, err
	}
	if err := limited(ctx, r.GetOptions()); err != nil {
		return nil, err
	}
	c, err := convert.Pod(r.GetConfig(), r.GetRuntimeHandler())
	if err != nil {
		return nil, err
	}
	var containers []podconfig.Container
	for _, one := range r.GetContainerConfigs() {
		cc, err := convert.Container(one)
		if err != nil {
			return nil, err
		}
		containers = append(containers, cc)
	}
	podID, restored, err := s.checkpoints.RestorePod(ctx, r.GetCheckpointPath(), c, containers)
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.RestorePodResponse{PodSandboxId: podID}
	for _, one := range restored {
		resp.RestoredContainers = append(resp.RestoredContainers, &runtimeapi.RestoredContainer{Name: one.Name, ContainerId: one.ID})
	}
	return resp, nil
}

// limited wants what the API wants of both calls: a deadline, and no options but those that
// are documented, of which there are none.
func limited(ctx context.Context, options map[string]string) error {
	if _, ok := ctx.Deadline(); !ok {
		return field.Invalid("deadline", "the call needs one")
	}
	if len(options) > 0 {
		return field.Invalid("options", "%s: there are no options", strings.Join(slices.Sorted(maps.Keys(options)), ", "))
	}
	return nil
}
