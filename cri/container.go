package cri

import (
	"context"
	"encoding/json"
	"iter"
	"math"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/convert"
	"github.com/coracle-project/coracle/cri/field"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// Containers are the containers of the pods.
type Containers interface {
	Create(ctx context.Context, podID string, c podconfig.Container) (string, error)
	StartContainer(ctx context.Context, id string) error
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	RemoveContainer(ctx context.Context, id string) error
	Container(id string) (pod.Container, error)
	Containers(f pod.ContainerFilter) iter.Seq[pod.Container]
	ContainerItems(f pod.ContainerFilter, encode func(*pod.Container) ([]byte, error)) ([][]byte, error)
	UpdateResources(ctx context.Context, id string, r podconfig.Resources, annotations map[string]string) error
	ReopenLog(ctx context.Context, id string) error
}

// CreateContainer makes a container in a pod. The request's copy of the pod's config is
// not looked at: the pod knows its own.
func (s *service) CreateContainer(ctx context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	if err := field.Required("pod_sandbox_id", r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	c, err := convert.Container(r.GetConfig())
	if err != nil {
		return nil, err
	}
	id, err := s.containers.Create(ctx, r.GetPodSandboxId(), c)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer starts a created container.
func (s *service) StartContainer(ctx context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	if err := field.Required("container_id", r.GetContainerId()); err != nil {
		return nil, err
	}
	if err := s.containers.StartContainer(ctx, r.GetContainerId()); err != nil {
		return nil, err
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer stops a container, by force when the timeout is over.
func (s *service) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	if err := field.Required("container_id", r.GetContainerId()); err != nil {
		return nil, err
	}
	grace, err := seconds("timeout", r.GetTimeout())
	if err != nil {
		return nil, err
	}
	if err := s.containers.StopContainer(ctx, r.GetContainerId(), grace); err != nil {
		return nil, err
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer removes a container, killing it if it still runs.
func (s *service) RemoveContainer(ctx context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	if err := field.Required("container_id", r.GetContainerId()); err != nil {
		return nil, err
	}
	if err := s.containers.RemoveContainer(ctx, r.GetContainerId()); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// listContainers is ListContainers (see runtimeService). It lists containers from memory.
func (s *service) listContainers(r *runtimeapi.ListContainersRequest) (encodedList, error) {
	return s.containerItems(r.GetFilter())
}

func (s *service) containerItems(f *runtimeapi.ContainerFilter) ([][]byte, error) {
	return s.containers.ContainerItems(convert.ContainerFilter(f), func(c *pod.Container) ([]byte, error) {
		return encodeItem(convert.ContainerItem(c))
	})
}

// ContainerStatus reports one container from memory. With verbose it also reads
// the container's OCI spec.
func (s *service) ContainerStatus(_ context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	if err := field.Required("container_id", r.GetContainerId()); err != nil {
		return nil, err
	}
	c, err := s.containers.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: s.containerStatus(&c)}
	if r.GetVerbose() {
		resp.Info, err = info(s.containerInfo(c))
	}
	return resp, err
}

// containerStatus is a container's status with its image by name.
func (s *service) containerStatus(c *pod.Container) *runtimeapi.ContainerStatus {
	out := convert.ContainerStatus(c)
	out.Image.Image = s.imageName(c)
	return out
}

// containerStatuses are those of all of a pod's containers, newest first.
func (s *service) containerStatuses(podID string) []*runtimeapi.ContainerStatus {
	var out []*runtimeapi.ContainerStatus
	for c := range s.containers.Containers(pod.ContainerFilter{PodID: podID}) {
		out = append(out, s.containerStatus(&c))
	}
	return out
}

// imageName is the name that people know a container's image by: kubelets create
// containers from image ids.
func (s *service) imageName(c *pod.Container) string {
	img, err := s.deps.Images.Get(c.ImageID)
	if err != nil {
		return c.Config.Image // removed meanwhile
	}
	for _, names := range [][]string{img.RepoTags, img.RepoDigests} {
		for _, name := range names {
			if name == c.Config.Image || name == c.Config.UserImage {
				return name
			}
		}
	}
	if len(img.RepoTags) > 0 {
		return img.RepoTags[0]
	}
	if len(img.RepoDigests) > 0 {
		return img.RepoDigests[0]
	}
	return c.Config.Image
}

// containerInfo is a verbose ContainerStatus.
type containerInfo struct {
	SandboxID   string                      `json:"sandboxID"`
	PID         int                         `json:"pid"`
	Snapshot    string                      `json:"snapshot"`
	Config      *runtimeapi.ContainerConfig `json:"config"`
	RuntimeSpec json.RawMessage             `json:"runtimeSpec,omitempty"`
	// SpecError says why RuntimeSpec is missing.
	SpecError string `json:"runtimeSpecError,omitempty"`
	// Steps are where the time of making and starting the container went, for coracle trace.
	Steps []pod.Step `json:"steps,omitempty"`
	// EngineSteps are those of the engine, in the shim: a part of one of Steps.
	EngineSteps []pod.Step `json:"engineSteps,omitempty"`
}

func (s *service) containerInfo(c pod.Container) containerInfo {
	i := containerInfo{
		SandboxID: c.PodID, PID: c.Pid, Snapshot: c.Snapshot, Config: convert.ContainerBack(&c.Config),
		Steps: c.Steps, EngineSteps: c.EngineSteps,
	}
	if s.deps.Spec == nil {
		return i
	}
	spec, err := s.deps.Spec(c)
	if err != nil {
		i.SpecError = err.Error()
		return i
	}
	i.RuntimeSpec = spec
	return i
}

// UpdateContainerResources changes a container's limits.
func (s *service) UpdateContainerResources(ctx context.Context,
	r *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	if err := field.Required("container_id", r.GetContainerId()); err != nil {
		return nil, err
	}
	if r.GetWindows() != nil {
		return nil, field.Invalid("windows", "this node runs Linux")
	}
	if err := s.containers.UpdateResources(ctx, r.GetContainerId(), convert.Resources(r.GetLinux()), r.GetAnnotations()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// ReopenContainerLog lets go of a rotated log file.
func (s *service) ReopenContainerLog(ctx context.Context,
	r *runtimeapi.ReopenContainerLogRequest,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	if err := field.Required("container_id", r.GetContainerId()); err != nil {
		return nil, err
	}
	if err := s.containers.ReopenLog(ctx, r.GetContainerId()); err != nil {
		return nil, err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// ExecSync runs a command in a container and returns what it printed.
func (s *service) ExecSync(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	if err := field.Required("container_id", r.GetContainerId()); err != nil {
		return nil, err
	}
	if len(r.GetCmd()) == 0 {
		return nil, field.Invalid("cmd", "is required")
	}
	timeout, err := seconds("timeout", r.GetTimeout())
	if err != nil {
		return nil, err
	}
	res, err := s.sessions.ExecSync(ctx, pod.ExecRequest{Container: r.GetContainerId(), Command: r.GetCmd()}, timeout)
	if err != nil {
		return nil, err
	}
	// gRPC ends the context when the answer is encoded.
	context.AfterFunc(ctx, res.Free)
	stdout, stderr := fit(res.Stdout, res.Stderr, maxMessage-1024)
	if res.StdoutCut {
		stdout = append(stdout, outputCut...)
	}
	if res.StderrCut {
		stderr = append(stderr, outputCut...)
	}
	return &runtimeapi.ExecSyncResponse{Stdout: stdout, Stderr: stderr, ExitCode: res.ExitCode}, nil
}

// outputCut marks output that was truncated because the output of other calls took too much memory.
const outputCut = "\n[coracle: output cut here, because commands that run at the same time print too much]\n"

// fit cuts two outputs to limit bytes in all, the longer one first: both in full
// would not go through a message.
func fit(a, b []byte, limit int) (cutA, cutB []byte) {
	if len(a)+len(b) <= limit {
		return a, b
	}
	half := limit / 2
	switch {
	case len(a) <= half:
		return a, b[:limit-len(a)]
	case len(b) <= half:
		return a[:limit-len(b)], b
	}
	return a[:half], b[:half]
}

// seconds turns a count of seconds into a duration.
func seconds(where string, n int64) (time.Duration, error) {
	const most = math.MaxInt64 / int64(time.Second)
	if n < 0 {
		return 0, field.Invalid(where, "%d seconds is negative", n)
	}
	return time.Duration(min(n, most)) * time.Second, nil
}
