// Package critest is a container runtime in memory, for tests of what happens when a real one
// fails.
//
// A Fake does what CRI says to its lists of sandboxes and containers and nothing else. Calls reach
// it without a network, so that it can be used in a synctest bubble. Fail makes a method fail, Exit
// ends a container, Calls tells what was called.
package critest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

// Fake is the runtime. Its zero value is not usable; see New.
type Fake struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	mu         sync.Mutex
	next       int
	sandboxes  map[string]*runtimeapi.PodSandboxStatus
	containers map[string]*container
	images     map[string]*runtimeapi.Image
	fail       map[string]error
	block      map[string]chan struct{}
	uses       map[string]*runtimeapi.ContainerStats // by container name
	calls      []string
	removals   map[string]*Removal
	network    *runtimeapi.RuntimeCondition
	silent     bool
	info       map[string]string
}

type container struct {
	status  *runtimeapi.ContainerStatus
	sandbox string
}

// New returns a Fake that has these images.
func New(images ...string) *Fake {
	f := &Fake{
		sandboxes: map[string]*runtimeapi.PodSandboxStatus{}, containers: map[string]*container{},
		images: map[string]*runtimeapi.Image{}, fail: map[string]error{}, block: map[string]chan struct{}{},
		uses: map[string]*runtimeapi.ContainerStats{}, removals: map[string]*Removal{},
		network: &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true},
	}
	for _, name := range images {
		f.images[name] = &runtimeapi.Image{Id: name, RepoTags: []string{name}, Size: 1 << 20}
	}
	return f
}

// Client returns a client of the runtime.
func (f *Fake) Client() *cri.Client { return cri.NewClient(conn{f}) }

// Fail makes a method ("CreateContainer") fail until it is called with nil.
func (f *Fake) Fail(method string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[method] = err
}

// Block holds a method's calls up until the returned function is called.
func (f *Fake) Block(method string) (release func()) {
	ch := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.block[method] = ch
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.block, method)
		close(ch)
	}
}

// Calls returns the methods that were called and change something, in order, and forgets them.
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// Exit ends all running instances of a container.
func (f *Fake) Exit(name string, code int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.containers {
		if c.status.Metadata.Name == name && c.status.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			c.exit(code)
		}
	}
}

func (c *container) exit(code int32) {
	c.status.State = runtimeapi.ContainerState_CONTAINER_EXITED
	c.status.ExitCode, c.status.FinishedAt = code, time.Now().UnixNano()
	c.status.Reason = "Completed"
	if code != 0 {
		c.status.Reason = "Error"
	}
}

// conn calls the Fake's methods as a gRPC connection would.
type conn struct{ f *Fake }

func (c conn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	name := method[strings.LastIndexByte(method, '/')+1:]
	c.f.mu.Lock()
	if !strings.HasPrefix(name, "List") && !strings.HasSuffix(name, "Status") && name != "Version" {
		c.f.calls = append(c.f.calls, name)
	}
	err, block := c.f.fail[name], c.f.block[name]
	c.f.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return grpcstatus.FromContextError(ctx.Err()).Err()
		}
	}
	if err != nil {
		return err
	}
	for _, service := range []grpc.ServiceDesc{runtimeapi.RuntimeService_ServiceDesc, runtimeapi.ImageService_ServiceDesc} {
		for _, m := range service.Methods {
			if m.MethodName != name || !strings.Contains(method, service.ServiceName) {
				continue
			}
			resp, err := m.Handler(c.f, ctx, func(request any) error {
				proto.Merge(request.(proto.Message), args.(proto.Message))
				return nil
			}, nil)
			if err != nil {
				return err
			}
			proto.Merge(reply.(proto.Message), resp.(proto.Message))
			return nil
		}
	}
	return grpcstatus.Error(codes.Unimplemented, method)
}

func (c conn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, grpcstatus.Error(codes.Unimplemented, "the fake has no streams")
}

// Version implements CRI.
func (f *Fake) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "fake", RuntimeVersion: "1", RuntimeApiVersion: "v1"}, nil
}

// SetReady makes the runtime ready if why is empty, and otherwise says why its network is not.
func (f *Fake) SetReady(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.network = &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: why == "", Message: why}
}

// SetNetwork sets the condition of the network.
func (f *Fake) SetNetwork(c *runtimeapi.RuntimeCondition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.Type = runtimeapi.NetworkReady
	f.network = c
}

// SetInfo sets what a verbose Status tells.
func (f *Fake) SetInfo(info map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.info = info
}

// HideAddresses says whether sandboxes are told of without their addresses.
func (f *Fake) HideAddresses(yes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = yes
}

// Status implements CRI.
func (f *Fake) Status(_ context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var info map[string]string
	if r.GetVerbose() {
		info = f.info
	}
	return &runtimeapi.StatusResponse{Info: info, Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		f.network,
	}}}, nil
}

// ExecSync implements CRI. Every command succeeds.
func (f *Fake) ExecSync(context.Context, *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return &runtimeapi.ExecSyncResponse{}, nil
}

// RunPodSandbox implements CRI.
func (f *Fake) RunPodSandbox(_ context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	s := &runtimeapi.PodSandboxStatus{
		Id: fmt.Sprintf("sandbox-%d", f.next), Metadata: r.Config.Metadata, Labels: r.Config.Labels, CreatedAt: time.Now().UnixNano() +
			int64(f.next),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: fmt.Sprintf("10.0.0.%d", f.next)},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: r.Config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
	f.sandboxes[s.Id] = s
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: s.Id}, nil
}

// StopPodSandbox implements CRI.
func (f *Fake) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sandboxes[r.PodSandboxId]; s != nil {
		s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		s.Network = nil
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox implements CRI.
func (f *Fake) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sandboxes, r.PodSandboxId)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus implements CRI.
func (f *Fake) PodSandboxStatus(_ context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sandboxes[r.PodSandboxId]
	if s == nil {
		return nil, grpcstatus.Error(codes.NotFound, "no such sandbox")
	}
	s = proto.CloneOf(s)
	if f.silent {
		s.Network = nil
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: s}, nil
}

// ListPodSandbox implements CRI.
func (f *Fake) ListPodSandbox(_ context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &runtimeapi.ListPodSandboxResponse{}
	for _, s := range f.sandboxes {
		if selected(s.Labels, r.GetFilter().GetLabelSelector()) {
			resp.Items = append(resp.Items, &runtimeapi.PodSandbox{
				Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt,
				Labels: s.Labels,
			})
		}
	}
	return resp, nil
}

// CreateContainer implements CRI.
func (f *Fake) CreateContainer(_ context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	c := &container{sandbox: r.PodSandboxId, status: &runtimeapi.ContainerStatus{
		Id: fmt.Sprintf("container-%d", f.next), Metadata: r.Config.Metadata, Labels: r.Config.Labels, Annotations: r.Config.Annotations,
		Image: r.Config.Image, ImageRef: r.Config.Image.GetImage(), Mounts: r.Config.Mounts, CreatedAt: time.Now().UnixNano() + int64(f.next),
		Resources: &runtimeapi.ContainerResources{Linux: r.Config.GetLinux().GetResources()},
	}}
	f.containers[c.status.Id] = c
	return &runtimeapi.CreateContainerResponse{ContainerId: c.status.Id}, nil
}

// StartContainer implements CRI.
func (f *Fake) StartContainer(_ context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[r.ContainerId]
	if c == nil {
		return nil, grpcstatus.Error(codes.NotFound, "no such container")
	}
	c.status.State, c.status.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer implements CRI: the container ends at once.
func (f *Fake) StopContainer(_ context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[r.ContainerId]; c != nil && c.status.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
		c.exit(137)
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer implements CRI.
func (f *Fake) RemoveContainer(_ context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.containers, r.ContainerId)
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// ContainerStatus implements CRI.
func (f *Fake) ContainerStatus(_ context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[r.ContainerId]
	if c == nil {
		return nil, grpcstatus.Error(codes.NotFound, "no such container")
	}
	return &runtimeapi.ContainerStatusResponse{Status: proto.CloneOf(c.status)}, nil
}

// ListContainers implements CRI.
func (f *Fake) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &runtimeapi.ListContainersResponse{}
	for _, c := range f.containers {
		if s := c.status; selected(s.Labels, r.GetFilter().GetLabelSelector()) {
			resp.Containers = append(resp.Containers, &runtimeapi.Container{
				Id: s.Id, PodSandboxId: c.sandbox, Metadata: s.Metadata, Image: s.Image, ImageRef: s.ImageRef, ImageId: s.ImageRef,
				State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels, Annotations: s.Annotations,
			})
		}
	}
	return resp, nil
}

// Use sets what statistics tell of the containers of this name.
func (f *Fake) Use(name string, workingSet, writable, inodes uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.uses[name] = &runtimeapi.ContainerStats{
		Memory: &runtimeapi.MemoryUsage{
			WorkingSetBytes: &runtimeapi.UInt64Value{Value: workingSet}, UsageBytes: &runtimeapi.UInt64Value{Value: workingSet},
		},
		WritableLayer: &runtimeapi.FilesystemUsage{
			UsedBytes: &runtimeapi.UInt64Value{Value: writable}, InodesUsed: &runtimeapi.UInt64Value{Value: inodes},
		},
	}
}

// UpdateContainerResources implements CRI.
func (f *Fake) UpdateContainerResources(_ context.Context,
	r *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[r.ContainerId]
	if c == nil {
		return nil, grpcstatus.Error(codes.NotFound, "no such container")
	}
	c.status.Resources = &runtimeapi.ContainerResources{Linux: proto.CloneOf(r.Linux)}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// ContainerStats implements CRI.
func (f *Fake) ContainerStats(_ context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[r.ContainerId]
	if c == nil {
		return nil, grpcstatus.Error(codes.NotFound, "no such container")
	}
	return &runtimeapi.ContainerStatsResponse{Stats: proto.CloneOf(f.uses[c.status.GetMetadata().GetName()])}, nil
}

// ListContainerStats implements CRI.
func (f *Fake) ListContainerStats(_ context.Context,
	r *runtimeapi.ListContainerStatsRequest,
) (*runtimeapi.ListContainerStatsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &runtimeapi.ListContainerStatsResponse{}
	for _, c := range f.containers {
		s := c.status
		use := f.uses[s.GetMetadata().GetName()]
		if use == nil || !selected(s.Labels, r.GetFilter().GetLabelSelector()) {
			continue
		}
		use = proto.CloneOf(use)
		use.Attributes = &runtimeapi.ContainerAttributes{Id: s.Id, Metadata: s.Metadata, Labels: s.Labels}
		resp.Stats = append(resp.Stats, use)
	}
	return resp, nil
}

func selected(labels, by map[string]string) bool {
	for k, v := range by {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// ImageStatus implements CRI.
func (f *Fake) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: f.images[r.Image.GetImage()]}, nil
}

// PullImage implements CRI: every image there is can be pulled.
func (f *Fake) PullImage(_ context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := r.Image.GetImage()
	f.images[name] = &runtimeapi.Image{Id: name, RepoTags: []string{name}, Size: 1 << 20}
	return &runtimeapi.PullImageResponse{ImageRef: name}, nil
}

// ListImages implements CRI.
func (f *Fake) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &runtimeapi.ListImagesResponse{}
	for _, i := range f.images {
		resp.Images = append(resp.Images, i)
	}
	slices.SortFunc(resp.Images, func(a, b *runtimeapi.Image) int { return strings.Compare(a.Id, b.Id) })
	return resp, nil
}

// Removal is an image's removal that does not succeed.
type Removal struct {
	err   error
	end   chan struct{}
	tried atomic.Int64
}

// Tried returns how often it was tried.
func (r *Removal) Tried() int { return int(r.tried.Load()) }

// Release ends the calls that hang.
func (r *Removal) Release() { close(r.end) }

// OnRemoveImage has an image's removal fail with err, or hang if that is nil.
func (f *Fake) OnRemoveImage(name string, err error) *Removal {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &Removal{err: err, end: make(chan struct{})}
	f.removals[name] = r
	return r
}

// RemoveImage implements CRI.
func (f *Fake) RemoveImage(ctx context.Context, r *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	f.mu.Lock()
	removal := f.removals[r.Image.GetImage()]
	f.mu.Unlock()
	if removal != nil {
		removal.tried.Add(1)
		if removal.err != nil {
			return nil, removal.err
		}
		select {
		case <-removal.end:
		case <-ctx.Done():
		}
		return nil, grpcstatus.FromContextError(ctx.Err()).Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.images, r.Image.GetImage())
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo implements CRI.
func (f *Fake) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"},
	}}}, nil
}
