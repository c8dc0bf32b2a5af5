package cri

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/convert"
	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

func fullContainerConfig() *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "srv", Attempt: 3},
		Image:    &runtimeapi.ImageSpec{Image: "sha256:aa", UserSpecifiedImage: "web:1"},
		Command:  []string{"/srv"}, Args: []string{"-v"}, WorkingDir: "/w",
		Envs: []*runtimeapi.KeyValue{{Key: "A", Value: []byte("1=2")}, {Key: "A", Value: []byte("")}},
		Mounts: []*runtimeapi.Mount{
			{ContainerPath: "/data", HostPath: "/d", Readonly: true, RecursiveReadOnly: true, SelinuxRelabel: true},
			{ContainerPath: "/b", HostPath: "/b", Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL},
			{ContainerPath: "/img", Image: &runtimeapi.ImageSpec{Image: "x"}, ImageSubPath: "sub"},
			{
				ContainerPath: "/m", HostPath: "/m", UidMappings: []*runtimeapi.IDMapping{{Length: 1}},
				GidMappings: []*runtimeapi.IDMapping{{ContainerId: 1, HostId: 2, Length: 3}}, MountOptions: []string{"noexec"},
			},
		},
		Devices:    []*runtimeapi.Device{{HostPath: "/dev/null"}, {HostPath: "/dev/zero", ContainerPath: "/dev/z", Permissions: "r"}},
		CDIDevices: []*runtimeapi.CDIDevice{{Name: "v/c=d"}},
		Labels:     map[string]string{"l": "1"}, Annotations: map[string]string{"a": "1"},
		LogPath: "srv/0.log", Stdin: true, StdinOnce: true, Tty: true,
		StopSignal: runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: fullResources(),
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				Capabilities: &runtimeapi.Capability{
					AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"ALL"}, AddAmbientCapabilities: []string{"CHOWN"},
				},
				Privileged:       true,
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: "c0"},
				SelinuxOptions:   &runtimeapi.SELinuxOption{Level: "s0"},
				RunAsUsername:    "www", RunAsGroup: &runtimeapi.Int64Value{Value: 33},
				ReadonlyRootfs: true, SupplementalGroups: []int64{7},
				SupplementalGroupsPolicy: runtimeapi.SupplementalGroupsPolicy_Strict,
				NoNewPrivs:               true, MaskedPaths: []string{"/proc/kcore"}, ReadonlyPaths: []string{"/proc/sys"},
				Seccomp:  &runtimeapi.SecurityProfile{},
				Apparmor: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "prof"},
			},
		},
	}
}

func fullResources() *runtimeapi.LinuxContainerResources {
	return &runtimeapi.LinuxContainerResources{
		CpuPeriod: 1, CpuQuota: 2, CpuShares: 3, MemoryLimitInBytes: 4, OomScoreAdj: 5, CpusetCpus: "0", CpusetMems: "1",
		HugepageLimits:         []*runtimeapi.HugepageLimit{{PageSize: "1GB", Limit: 1}, {PageSize: "2MB", Limit: 6}},
		Unified:                map[string]string{"memory.high": "max"},
		MemorySwapLimitInBytes: 7,
	}
}

func convertedResources() podconfig.Resources {
	return podconfig.Resources{
		CPUPeriod: 1, CPUQuota: 2, CPUShares: 3, MemoryLimit: 4, OOMScoreAdj: 5, CpusetCPUs: "0", CpusetMems: "1",
		Hugepages: map[string]uint64{"1GB": 1, "2MB": 6}, Unified: map[string]string{"memory.high": "max"}, MemorySwapLimit: 7,
	}
}

func convertedContainerConfig() podconfig.Container {
	return podconfig.Container{
		Name: "srv", Attempt: 3, Image: "sha256:aa", UserImage: "web:1",
		Command: []string{"/srv"}, Args: []string{"-v"}, WorkingDir: "/w",
		Env: [][2]string{{"A", "1=2"}, {"A", ""}},
		Mounts: []podconfig.Mount{
			{
				ContainerPath: "/data", HostPath: "/d", Readonly: true, RecursiveReadonly: true, SELinuxRelabel: true,
				Propagation: podconfig.PropagationPrivate,
			},
			{ContainerPath: "/b", HostPath: "/b", Propagation: podconfig.PropagationBidirectional},
			{ContainerPath: "/img", Image: "x", ImageSubPath: "sub", Propagation: podconfig.PropagationPrivate},
			{
				ContainerPath: "/m", HostPath: "/m",
				Users:       podconfig.IDMaps{UIDs: []podconfig.IDMap{{Length: 1}}, GIDs: []podconfig.IDMap{{Container: 1, Host: 2, Length: 3}}},
				Options:     []string{"noexec"},
				Propagation: podconfig.PropagationPrivate,
			},
		},
		Devices: []podconfig.Device{
			{ContainerPath: "/dev/null", HostPath: "/dev/null", Permissions: "rwm"},
			{ContainerPath: "/dev/z", HostPath: "/dev/zero", Permissions: "r"},
		},
		CDIDevices: []string{"v/c=d"},
		Labels:     map[string]string{"l": "1"}, Annotations: map[string]string{"a": "1"},
		LogPath: "srv/0.log", Stdin: true, StdinOnce: true, TTY: true,
		Resources:  convertedResources(),
		StopSignal: "SIGRTMIN+3",
		Security: podconfig.Security{
			Privileged: true, AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"ALL"}, AddAmbientCapabilities: []string{"CHOWN"},
			Namespaces: podconfig.Namespaces{
				Network: podconfig.NamespacePod, PID: podconfig.NamespaceTarget, IPC: podconfig.NamespacePod,
				TargetID: "c0",
			},
			User: podconfig.User{Name: "www", GID: int64p(33)}, SupplementalGroups: []int64{7}, SupplementalGroupsStrict: true,
			ReadonlyRootfs: true, NoNewPrivs: true, MaskedPaths: []string{"/proc/kcore"}, ReadonlyPaths: []string{"/proc/sys"},
			Seccomp: podconfig.Seccomp{Type: podconfig.ProfileRuntimeDefault}, AppArmor: "localhost/prof", SELinux: podconfig.SELinux{Level: "s0"},
		},
	}
}

func TestCreateContainerConvertsEveryField(t *testing.T) {
	e := serve(t, &double{})
	resp, err := e.runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: "p", Config: fullContainerConfig()})
	if err != nil {
		t.Fatal(err)
	}
	if resp.ContainerId != "new-container" {
		t.Errorf("id %q", resp.ContainerId)
	}
	got := e.last(t)
	if got.args[0] != "p" {
		t.Errorf("pod %v", got.args[0])
	}
	if diff := cmp.Diff(convertedContainerConfig(), got.args[1]); diff != "" {
		t.Error(diff)
	}
}

func TestContainerConfigRejections(t *testing.T) {
	type config = runtimeapi.ContainerConfig
	security := func(c *config) *runtimeapi.LinuxContainerSecurityContext { return c.Linux.SecurityContext }
	for name, spoil := range map[string]func(*config){
		"no metadata":           func(c *config) { c.Metadata = nil },
		"no image":              func(c *config) { c.Image = nil },
		"windows":               func(c *config) { c.Windows = &runtimeapi.WindowsContainerConfig{} },
		"empty variable":        func(c *config) { c.Envs[0].Key = "" },
		"equals in variable":    func(c *config) { c.Envs[0].Key = "A=B" },
		"bytes in variable":     func(c *config) { c.Envs[0].Value = []byte("a\xff") },
		"zero byte in variable": func(c *config) { c.Envs[0].Value = []byte("a\x00b") },
		"no mount point":        func(c *config) { c.Mounts[0].ContainerPath = "" },
		"no mount source":       func(c *config) { c.Mounts[1].HostPath = "" },
		"two mount sources":     func(c *config) { c.Mounts[2].HostPath = "/x" },
		"relative mount source": func(c *config) { c.Mounts[0].HostPath = "d" },
		"unknown propagation":   func(c *config) { c.Mounts[0].Propagation = 9 },
		"recursive but not ro":  func(c *config) { c.Mounts[0].Readonly = false },
		"recursive and shared":  func(c *config) { c.Mounts[0].Propagation = 1 },
		"no device":             func(c *config) { c.Devices[0].HostPath = "" },
		"device permissions":    func(c *config) { c.Devices[0].Permissions = "rx" },
		"unknown signal":        func(c *config) { c.StopSignal = 99 },
		"user and name":         func(c *config) { security(c).RunAsUser = &runtimeapi.Int64Value{Value: 1} },
		"group alone":           func(c *config) { security(c).RunAsUsername = "" },
		"negative group":        func(c *config) { security(c).SupplementalGroups = []int64{-1} },
		"unknown policy":        func(c *config) { security(c).SupplementalGroupsPolicy = 5 },
		"unknown mode":          func(c *config) { security(c).NamespaceOptions.Network = 8 },
		"seccomp without path":  func(c *config) { security(c).Seccomp.ProfileType = 2 },
		"unknown apparmor":      func(c *config) { security(c).Apparmor.ProfileType = 8 },
		"apparmor without name": func(c *config) { security(c).Apparmor.LocalhostRef = "localhost/" },
		"unknown old apparmor": func(c *config) {
			security(c).Apparmor = nil
			security(c).ApparmorProfile = "localhost/" //lint:ignore SA1019 still sent
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := fullContainerConfig()
			spoil(c)
			if _, err := convert.Container(c); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v, want InvalidArgument", err)
			}
		})
	}
	if _, err := convert.Container(nil); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no config: %v", err)
	}
}

// Upstream's kubelet sends image_sub_path with every mount that has a subPath: without an image it
// says nothing.
func TestImageSubPathWithoutImage(t *testing.T) {
	c := fullContainerConfig()
	c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/x", HostPath: "/y", ImageSubPath: "sub"}}
	got, err := convert.Container(c)
	if err != nil || got.Mounts[0].ImageSubPath != "" {
		t.Errorf("%+v, %v", got.Mounts, err)
	}
}

func aContainer() pod.Container {
	return pod.Container{
		ID: "c1234", PodID: "pod1234", Config: convertedContainerConfig(), State: pod.Exited,
		ImageID: anImage().ID.String(), ImageRef: "reg/web@sha256:bb",
		CreatedAt: time.Unix(1, 0), StartedAt: time.Unix(2, 0), FinishedAt: time.Unix(3, 0),
		ExitCode: 137, Reason: "OOMKilled", Message: "m", LogPath: "/var/log/pods/web/srv/0.log", Pid: 9,
		UID: 33, GID: 34, SupplementalGroups: []int64{7}, Snapshot: "/s/fs",
	}
}

func TestContainerStatusHasEveryField(t *testing.T) {
	c := aContainer()
	c.VolumeRefs = map[string]string{"/img": "reg/data@sha256:cc"}
	e := serve(t, &double{containers: []pod.Container{c}, images: []image.Image{anImage()}}, func(_ *Config, d *Deps) {
		d.Spec = func(c pod.Container) (json.RawMessage, error) {
			return json.RawMessage(`{"ociVersion":"` + c.ID + `"}`), nil
		}
	})
	resp, err := e.runtime.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: "c1", Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	full := fullContainerConfig()
	full.Mounts[2].Readonly = true // as images are
	full.Mounts[2].Image.ImageRef = "reg/data@sha256:cc"
	want := &runtimeapi.ContainerStatus{
		Id: "c1234", Metadata: full.Metadata, State: runtimeapi.ContainerState_CONTAINER_EXITED,
		CreatedAt: 1e9, StartedAt: 2e9, FinishedAt: 3e9, ExitCode: 137,
		Image:    &runtimeapi.ImageSpec{Image: "reg.example/web:1", UserSpecifiedImage: "web:1"},
		ImageRef: "reg/web@sha256:bb", ImageId: c.ImageID, Reason: "OOMKilled", Message: "m",
		Labels: full.Labels, Annotations: full.Annotations, Mounts: full.Mounts,
		LogPath:    "/var/log/pods/web/srv/0.log",
		Resources:  &runtimeapi.ContainerResources{Linux: fullResources()},
		User:       &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{Uid: 33, Gid: 34, SupplementalGroups: []int64{7}}},
		StopSignal: runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3,
	}
	if diff := cmp.Diff(want, resp.Status, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	var got containerInfo
	if err := json.Unmarshal([]byte(resp.Info["info"]), &got); err != nil {
		t.Fatal(err)
	}
	if got.PID != 9 || got.SandboxID != "pod1234" || got.Snapshot != "/s/fs" || string(got.RuntimeSpec) != `{"ociVersion":"c1234"}` {
		t.Errorf("info %+v", got)
	}
}

func TestContainerInfoWithoutSpec(t *testing.T) {
	s := &service{deps: Deps{Spec: func(pod.Container) (json.RawMessage, error) { return nil, errors.New("gone") }}}
	if i := s.containerInfo(aContainer()); i.SpecError != "gone" || i.RuntimeSpec != nil {
		t.Errorf("%+v", i)
	}
}

func TestImageNameOfContainer(t *testing.T) {
	named, untagged := anImage(), anImage()
	untagged.RepoTags = nil
	for name, tt := range map[string]struct {
		images []image.Image
		asked  string
		want   string
	}{
		"removed":         {nil, "sha256:aa", "sha256:aa"},
		"by id":           {[]image.Image{named}, "sha256:aa", "reg.example/web:1"},
		"by second tag":   {[]image.Image{named}, "reg.example/web:2", "reg.example/web:2"},
		"by digest":       {[]image.Image{named}, named.RepoDigests[0], named.RepoDigests[0]},
		"without any tag": {[]image.Image{untagged}, "sha256:aa", named.RepoDigests[0]},
	} {
		t.Run(name, func(t *testing.T) {
			c := aContainer()
			c.Config.Image = tt.asked
			s := &service{deps: Deps{Images: byID{all: tt.images}}}
			if got := s.imageName(&c); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// byID finds images by id only, and can do nothing else.
type byID struct {
	Images
	all []image.Image
}

func (b byID) Get(ref string) (image.Image, error) {
	for _, img := range b.all {
		if img.ID.String() == ref {
			return img, nil
		}
	}
	return image.Image{}, image.ErrNotFound
}

func TestListContainers(t *testing.T) {
	c := aContainer()
	c.ImageRef = ""
	e := serve(t, &double{containers: []pod.Container{c}})
	resp, err := e.runtime.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		Id: "c", PodSandboxId: "p", LabelSelector: map[string]string{"l": "1"},
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		t.Fatal(err)
	}
	filter := pod.ContainerFilter{ID: "c", PodID: "p", Labels: map[string]string{"l": "1"}, State: pod.Running}
	if diff := cmp.Diff(filter, e.last(t).args[0]); diff != "" {
		t.Error(diff)
	}
	want := []*runtimeapi.Container{{
		Id: "c1234", PodSandboxId: "pod1234", Metadata: &runtimeapi.ContainerMetadata{Name: "srv", Attempt: 3},
		Image:    &runtimeapi.ImageSpec{Image: "sha256:aa", UserSpecifiedImage: "web:1"},
		ImageRef: c.ImageID, ImageId: c.ImageID, State: runtimeapi.ContainerState_CONTAINER_EXITED, CreatedAt: 1e9,
		Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "1"},
	}}
	if diff := cmp.Diff(want, resp.Containers, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestStopContainerTimeout(t *testing.T) {
	e := serve(t, &double{})
	for in, want := range map[int64]time.Duration{0: 0, 30: 30 * time.Second, math.MaxInt64: math.MaxInt64 / time.Second * time.Second} {
		if _, err := e.runtime.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "c", Timeout: in}); err != nil {
			t.Fatal(err)
		}
		if got := e.last(t).args[1]; got != want {
			t.Errorf("%d: %v, want %v", in, got, want)
		}
	}
}

func TestExecSyncFitsAMessage(t *testing.T) {
	full := make([]byte, pod.MaxExecSyncOutput)
	e := serve(t, &double{execSync: pod.ExecSyncResult{Stdout: full, Stderr: full, ExitCode: 3}})
	resp, err := e.runtime.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: "c", Cmd: []string{"yes"}, Timeout: 2})
	if err != nil {
		t.Fatal(err)
	}
	if resp.ExitCode != 3 || len(resp.Stdout) < 8<<20-1024 || len(resp.Stderr) < 8<<20-1024 {
		t.Errorf("code %d, %d and %d bytes", resp.ExitCode, len(resp.Stdout), len(resp.Stderr))
	}
	want := []any{pod.ExecRequest{Container: "c", Command: []string{"yes"}}, 2 * time.Second}
	if diff := cmp.Diff(want, e.last(t).args); diff != "" {
		t.Error(diff)
	}
}

func TestExecSyncSaysThatOutputIsCut(t *testing.T) {
	full := make([]byte, pod.MaxExecSyncOutput)
	e := serve(t, &double{execSync: pod.ExecSyncResult{Stdout: full, Stderr: []byte("few"), StdoutCut: true, ExitCode: 3}})
	resp, err := e.runtime.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: "c", Cmd: []string{"yes"}})
	if err != nil {
		t.Fatal(err)
	}
	if resp.ExitCode != 3 || !bytes.HasSuffix(resp.Stdout, []byte(outputCut)) || string(resp.Stderr) != "few" {
		t.Errorf("code %d, %d bytes, %q", resp.ExitCode, len(resp.Stdout), resp.Stderr)
	}
}

func TestFit(t *testing.T) {
	for _, tt := range []struct{ a, b, limit, wantA, wantB int }{
		{3, 4, 10, 3, 4},
		{3, 20, 10, 3, 7},
		{20, 3, 10, 7, 3},
		{20, 20, 10, 5, 5},
		{10, 0, 10, 10, 0},
	} {
		a, b := fit(bytes.Repeat([]byte{1}, tt.a), bytes.Repeat([]byte{2}, tt.b), tt.limit)
		if len(a) != tt.wantA || len(b) != tt.wantB {
			t.Errorf("%+v: %d, %d", tt, len(a), len(b))
		}
	}
}

func TestUpdateContainerResources(t *testing.T) {
	e := serve(t, &double{})
	_, err := e.runtime.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: "c", Linux: fullResources(), Annotations: map[string]string{"a": "b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]any{"c", convertedResources(), map[string]string{"a": "b"}}, e.last(t).args); diff != "" {
		t.Error(diff)
	}
}
