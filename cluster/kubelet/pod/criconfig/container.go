package criconfig

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/decide"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/podlogs"
)

// Request asks for a container's configuration.
type Request struct {
	Pod      *v1.Pod
	Observed *kubecontainer.PodStatus // what the runtime has of the pod
	Start    decide.Start
	Image    string                           // id
	Images   map[string]*runtimeapi.ImageSpec // those that are mounted, by the names of their volumes
}

// Container is a container as CRI wants it.
func (m *Maker) Container(ctx context.Context, q Request) (*runtimeapi.ContainerConfig, error) {
	pod, c := q.Pod, q.Start.Container
	if len(c.Resources.Claims) > 0 { // schedulers choose devices where there are ResourceSlices
		return nil,
			fmt.Errorf(
				"this kubelet does not prepare devices of ResourceClaims (%q): remove resources.claims from the container, or run the pod on a node "+
					"whose kubelet does", c.Resources.Claims[0].Name,
			)
	}
	if name := extendedDevice(pod, c); name != "" {
		return nil,
			fmt.Errorf(
				"this kubelet does not prepare devices of ResourceClaims, which the scheduler has chosen for %q: remove it from the container's "+
					"requests, or run the pod on a node whose kubelet does", name,
			)
	}
	restarts := m.restartCount(q)
	envs, command, args, err := m.Env.Resolve(ctx, pod, c, m.IPs(pod, q.Observed), m.HostIPs())
	if err != nil {
		return nil, err
	}
	mounts, err := m.mounts(ctx, q, envs)
	if err != nil {
		return nil, err
	}
	devices, err := m.Volumes.Devices(ctx, pod, c)
	if err != nil {
		return nil, err
	}
	for i := range c.VolumeMounts { // mounts begin with these
		if spec := q.Images[c.VolumeMounts[i].Name]; spec != nil {
			mounts[i].Image = spec
		}
	}
	user, err := m.imageUser(ctx, c.Image)
	if err != nil {
		return nil, err
	}
	security, err := m.containerSecurity(pod, c, user)
	if err != nil {
		return nil, err
	}
	if err := target(security, q); err != nil {
		return nil, err
	}
	if users := security.NamespaceOptions.UsernsOptions; users != nil {
		for _, m := range mounts { // in a volume, files have the ids that they have in the container
			m.UidMappings, m.GidMappings = users.Uids, users.Gids
		}
	}
	if err := os.MkdirAll(filepath.Join(m.Logs.Pod(pod), c.Name), 0o755); err != nil {
		return nil, fmt.Errorf("create container log directory for container %s failed: %w", c.Name, err)
	}
	return &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: uint32(restarts)},
		Image:       &runtimeapi.ImageSpec{Image: q.Image, UserSpecifiedImage: c.Image},
		Command:     command,
		Args:        args,
		WorkingDir:  c.WorkingDir,
		Envs:        envs,
		Mounts:      mounts,
		Devices:     devices,
		Labels:      cri.ContainerLabels(pod, c),
		Annotations: cri.ContainerAnnotations(pod, c, restarts),
		LogPath:     podlogs.File(c.Name, restarts),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       m.ContainerResources(pod, c),
			SecurityContext: security,
		},
	}, nil
}

// restartCount returns how often the container has been started before. When the runtime has
// forgotten it, as after a reboot, its logs tell.
func (m *Maker) restartCount(q Request) int {
	name := q.Start.Container.Name
	if s := q.Observed.FindContainerStatusByName(name); s != nil {
		return s.RestartCount + 1
	}
	return podlogs.Restarts(filepath.Join(m.Logs.Pod(q.Pod), name))
}

// imageUser asks whom the image runs as; an image that does not say runs as root.
func (m *Maker) imageUser(ctx context.Context, image string) (imageUser, error) {
	resp, err := m.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	if err != nil {
		return imageUser{}, err
	}
	switch i := resp.GetImage(); {
	case i.GetUid() != nil:
		return imageUser{uid: &i.Uid.Value}, nil
	case i.GetUsername() != "":
		return imageUser{name: i.Username}, nil
	}
	return imageUser{uid: new(int64)}, nil
}

// target has an ephemeral container see the processes of the one that it is to look into.
func target(security *runtimeapi.LinuxContainerSecurityContext, q Request) error {
	if q.Start.Target == "" || security.NamespaceOptions.Pid != runtimeapi.NamespaceMode_CONTAINER {
		return nil
	}
	t := q.Observed.FindContainerStatusByName(q.Start.Target)
	if t == nil {
		return fmt.Errorf("unable to find target container %s", q.Start.Target)
	}
	security.NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
	security.NamespaceOptions.TargetId = t.ID.ID
	return nil
}

// mounts returns the container's volumes in the order of its volumeMounts, the pod's hosts file and
// the file that the container may leave its last word in.
func (m *Maker) mounts(ctx context.Context, q Request, envs []*runtimeapi.KeyValue) ([]*runtimeapi.Mount, error) {
	pod, c := q.Pod, q.Start.Container
	mounts, err := m.Volumes.Mounts(ctx, pod, c, envs)
	if err != nil {
		return nil, err
	}
	own := func(path string) bool {
		for _, m := range c.VolumeMounts {
			if m.MountPath == path {
				return true
			}
		}
		return false
	}
	if ips := m.IPs(pod, q.Observed); !own(hostsPath) && (pod.Spec.HostNetwork || len(ips) > 0) {
		file, err := m.writeHosts(pod, q.Observed.IPs)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: hostsPath, HostPath: file, SelinuxRelabel: true})
	}
	if c.TerminationMessagePath == "" {
		return mounts, nil
	}
	file, err := m.messageFile(pod, c)
	if err != nil {
		return nil, err
	}
	return append(mounts, &runtimeapi.Mount{
		ContainerPath: filepath.Join("/", c.TerminationMessagePath), HostPath: file, SelinuxRelabel: true,
	}), nil
}

// messagesDir, in the pod's directory, is where containers' last words are.
const messagesDir = "containers"

// Files are the files and directories of the kubelet's that a pod's containers can write to, by
// which they could fill the node's disk (CVE-2020-8557). root is the kubelet's directory.
func Files(root string, pod *v1.Pod) []string {
	dir := Dir(root, pod.UID)
	return []string{filepath.Join(dir, hostsFile), filepath.Join(dir, messagesDir)}
}

// messageFile makes the file that is mounted at the container's terminationMessagePath, a new one
// for each instance, which any user may write to.
func (m *Maker) messageFile(pod *v1.Pod, c *v1.Container) (string, error) {
	dir := filepath.Join(Dir(m.RootDir, pod.UID), messagesDir, c.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	name := make([]byte, 4)
	_, _ = rand.Read(name) // never fails
	file := filepath.Join(dir, hex.EncodeToString(name))
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		return "", err
	}
	return file, os.Chmod(file, 0o666) // whatever the umask is
}

// extendedDevice returns the extended resource for which the scheduler has made a ResourceClaim, of
// those that the container requests; "" if there is none.
func extendedDevice(pod *v1.Pod, c *v1.Container) string {
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		for _, mapping := range status.RequestMappings {
			if mapping.ContainerName == c.Name {
				return mapping.ResourceName
			}
		}
	}
	return ""
}
