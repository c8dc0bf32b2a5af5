package env

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcehelper "k8s.io/component-helpers/resource"
	resourceapi "k8s.io/kubernetes/pkg/api/v1/resource"
	podshelper "k8s.io/kubernetes/pkg/apis/core/pods"
	corev1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/pkg/kubelet/envvars"
	envfile "k8s.io/kubernetes/pkg/kubelet/util/env"
	netutils "k8s.io/utils/net"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/watched"
)

// serviceVariables are the variables of the services that the pod is linked to: all of its
// namespace if it wants them, and the API server's always.
func (r *Resolver) serviceVariables(pod *v1.Pod) (map[string]string, error) {
	if pod.Spec.EnableServiceLinks == nil {
		return nil, errNoServiceLinks
	}
	source := pod.Annotations[staticSource]
	if fromAPI := source == "" || source == "api"; fromAPI && !r.synced() {
		return nil, fmt.Errorf("services have not yet been read at least once, cannot construct envvars")
	}
	linked := map[string]*v1.Service{}
	api, err := r.services.Services(metav1.NamespaceDefault).Get("kubernetes")
	if err == nil && corev1helper.IsServiceIPSet(api) {
		linked[api.Name] = api
	}
	if *pod.Spec.EnableServiceLinks {
		own, err := r.services.Services(pod.Namespace).List(labels.Everything())
		if err != nil {
			return nil, fmt.Errorf("failed to list services when setting up env vars")
		}
		for _, s := range own {
			if corev1helper.IsServiceIPSet(s) {
				linked[s.Name] = s
			}
		}
	}
	var services []*v1.Service
	for _, name := range sorted(linked) {
		services = append(services, linked[name])
	}
	variables := map[string]string{}
	for _, e := range envvars.FromServices(services) {
		variables[e.Name] = e.Value
	}
	return variables, nil
}

// objectName names a config map or secret of the pod's namespace; kind is the API's.
type objectName struct{ kind, name string }

// values are what an object holds.
type values map[string]string

// object reads an object once for each call. It is not found without an error if it is optional.
func (c *call) object(ctx context.Context, name objectName, optional *bool) (data values, found bool, err error) {
	if data, ok := c.objects[name]; ok {
		return data, true, nil
	}
	err = watched.OnceGranted(ctx, func() (err error) {
		data, err = c.read(ctx, name)
		return err
	})
	switch {
	case err == nil:
		c.objects[name] = data
		return data, true, nil
	case apierrors.IsNotFound(err) && isTrue(optional):
		return nil, false, nil
	case apierrors.IsNotFound(err):
		// Upstream's kubelet says it with the kind's name, not with the resource's.
		return nil, false, apierrors.NewNotFound(v1.Resource(strings.ToLower(name.kind)), name.name)
	}
	return nil, false, err
}

func (c *call) read(ctx context.Context, name objectName) (values, error) {
	if name.kind == "ConfigMap" {
		cm, err := c.kube.CoreV1().ConfigMaps(c.pod.Namespace).Get(ctx, name.name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return cm.Data, nil
	}
	secret, err := c.kube.CoreV1().Secrets(c.pod.Namespace).Get(ctx, name.name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	data := values{}
	for k, v := range secret.Data {
		data[k] = string(v)
	}
	return data, nil
}

func isTrue(b *bool) bool { return b != nil && *b }

// key is the value of one key of an object.
func (c *call) key(ctx context.Context, name objectName, key string, optional *bool) (string, bool, error) {
	data, found, err := c.object(ctx, name, optional)
	if err != nil || !found {
		return "", false, err
	}
	value, ok := data[key]
	if !ok && !isTrue(optional) {
		return "", false, c.missingKey(name, key)
	}
	return value, ok, nil
}

// field is the value of a field of the pod.
func (c *call) field(ref *v1.ObjectFieldSelector) (string, error) {
	field, _, err := podshelper.ConvertDownwardAPIFieldLabel(ref.APIVersion, ref.FieldPath, "")
	if err != nil {
		return "", err
	}
	switch field {
	case "spec.nodeName":
		return c.pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return c.pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(c.hostIPs), nil
	case "status.hostIPs":
		return strings.Join(c.hostIPs, ","), nil
	case "status.podIP":
		return first(c.orderedPodIPs()), nil
	case "status.podIPs":
		return strings.Join(c.orderedPodIPs(), ","), nil
	}
	return fieldpath.ExtractFieldPathAsString(c.pod, field)
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// orderedPodIPs are the pod's first address of the node's family and its first of the other one.
func (c *call) orderedPodIPs() []string {
	six := netutils.IsIPv6String(first(c.hostIPs))
	var ordered []string
	for _, want := range []bool{six, !six} {
		i := slices.IndexFunc(c.podIPs, func(ip string) bool {
			return netutils.ParseIPSloppy(ip) != nil && netutils.IsIPv6String(ip) == want
		})
		if i >= 0 {
			ordered = append(ordered, netutils.ParseIPSloppy(c.podIPs[i]).String())
		}
	}
	return ordered
}

// resource is the value of a container's request or limit.
func (c *call) resource(ref *v1.ResourceFieldSelector) (string, error) {
	var allocatable v1.ResourceList
	if c.opts.Allocatable != nil {
		allocatable = c.opts.Allocatable()
	}
	if resourcehelper.IsPodLevelLimitsSet(c.pod) {
		allocatable = allocatable.DeepCopy()
		for name, limit := range c.pod.Spec.Resources.Limits {
			if _, known := allocatable[name]; known && resourcehelper.IsSupportedPodLevelResource(name) && !limit.IsZero() {
				allocatable[name] = limit
			}
		}
	}
	if ref.ContainerName != "" {
		return resourceapi.ExtractResourceValueByContainerNameAndNodeAllocatable(ref, c.pod, ref.ContainerName, allocatable)
	}
	container := c.container.DeepCopy()
	resourceapi.MergeContainerResourceLimits(container, allocatable)
	return resourceapi.ExtractContainerResourceValue(ref, container)
}

// maxEnvFile bounds a file with variables, which a container has written.
const maxEnvFile = 1 << 20

// file is the value of a key in a file in an emptyDir. Containers wrote it, so the kernel resolves
// its path within the volume, and nothing but a small regular file is read.
func (c *call) file(ref *v1.FileKeySelector) (value string, set bool, err error) {
	emptyDir := func(v v1.Volume) bool { return v.Name == ref.VolumeName && v.EmptyDir != nil }
	if !slices.ContainsFunc(c.pod.Spec.Volumes, emptyDir) {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	value, err = readEnvFile(layout.Dirs{Root: c.opts.RootDir}.EmptyDir(c.pod.UID, ref.VolumeName), ref.Path, ref.Key)
	if err != nil {
		c.opts.Log.Warn("env file not read", "pod", c.pod.Namespace+"/"+c.pod.Name, "volume", ref.VolumeName, "path", ref.Path, "err", err)
		return "", false, fmt.Errorf("couldn't parse env file")
	}
	if value == "" {
		if isTrue(ref.Optional) {
			return "", false, nil
		}
		return "", false, fmt.Errorf("environment variable key %q not found in file %q", ref.Key, ref.Path)
	}
	return value, true, nil
}

func readEnvFile(dir, name, key string) (string, error) {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, path.Clean(name), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return "", err
	}
	if s.Mode&unix.S_IFMT != unix.S_IFREG || s.Size > maxEnvFile {
		return "", fmt.Errorf("no regular file of at most %d bytes", maxEnvFile)
	}
	// Only now is it opened for reading: opening a device may already do something.
	return envfile.ParseEnv(fmt.Sprintf("/proc/self/fd/%d", fd), key)
}
