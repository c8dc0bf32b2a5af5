package volume

import (
	"context"
	"errors"
	"path"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	resourceapi "k8s.io/kubernetes/pkg/api/v1/resource"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/pkg/securitycontext"

	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/fsgroup"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/tokens"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/watched"
)

// file is one file of a projected volume.
type file struct {
	data []byte
	mode int32
	// owner is the file's user, or nil for root.
	owner *int64
}

var errNoDefaultMode = errors.New("no defaultMode used, not even the default value for it")

// contents collects what the files of a volume should be now, by their paths in the volume.
func (m *Manager) contents(ctx context.Context, p *podVolumes, vol *v1.Volume) (map[string]file, error) {
	files := map[string]file{}
	switch {
	case vol.ConfigMap != nil:
		s := vol.ConfigMap
		return files, m.addConfigMap(ctx, p, files, s.Name, s.Items, s.DefaultMode, s.Optional)
	case vol.Secret != nil:
		s := vol.Secret
		return files, m.addSecret(ctx, p, files, s.SecretName, s.Items, s.DefaultMode, s.Optional)
	case vol.DownwardAPI != nil:
		return files, m.addDownwardAPI(p.pod, files, vol.DownwardAPI.Items, vol.DownwardAPI.DefaultMode)
	}
	if vol.Projected.DefaultMode == nil {
		return nil, errNoDefaultMode
	}
	var errs []error
	for i := range vol.Projected.Sources {
		if err := m.addSource(ctx, p, files, &vol.Projected.Sources[i], vol.Projected.DefaultMode); err != nil {
			errs = append(errs, err)
		}
	}
	return files, utilerrors.NewAggregate(errs)
}

func (m *Manager) addSource(ctx context.Context, p *podVolumes, files map[string]file, source *v1.VolumeProjection, mode *int32) error {
	switch {
	case source.ConfigMap != nil:
		s := source.ConfigMap
		return m.addConfigMap(ctx, p, files, s.Name, s.Items, mode, s.Optional)
	case source.Secret != nil:
		s := source.Secret
		return m.addSecret(ctx, p, files, s.Name, s.Items, mode, s.Optional)
	case source.DownwardAPI != nil:
		return m.addDownwardAPI(p.pod, files, source.DownwardAPI.Items, mode)
	case source.ServiceAccountToken != nil:
		return m.addToken(ctx, p, files, source.ServiceAccountToken, *mode)
	case source.ClusterTrustBundle != nil:
		return errors.New("clusterTrustBundle projections are not served by this kubelet: project a configMap that has the certificates instead")
	case source.PodCertificate != nil:
		return errors.New("podCertificate projections are not served by this kubelet: use a secret instead")
	}
	return errors.New("a projected source is empty or of a kind that this kubelet does not know")
}

// ref returns the pod's reference to an object, held from now until Unmount.
func (m *Manager) ref(p *podVolumes, kind watched.Kind, name string) *watched.Ref {
	key := watched.Key{Kind: kind, Namespace: p.pod.Namespace, Name: name}
	ref := p.refs[key]
	if ref == nil {
		ref = m.objects.Hold(key, func() { m.changed(p) })
		p.refs[key] = ref
	}
	return ref
}

func (m *Manager) addDownwardAPI(pod *v1.Pod, files map[string]file, items []v1.DownwardAPIVolumeFile, mode *int32) error {
	if mode == nil {
		return errNoDefaultMode
	}
	var errs []error
	for _, item := range items {
		f := file{mode: *mode}
		if item.Mode != nil {
			f.mode = *item.Mode
		}
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = fieldpath.ExtractFieldPathAsString(pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = resourceapi.ExtractResourceValueByContainerNameAndNodeAllocatable(
				item.ResourceFieldRef, pod, item.ResourceFieldRef.ContainerName, m.allocatable())
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f.data = []byte(value)
		files[path.Clean(item.Path)] = f
	}
	return utilerrors.NewAggregate(errs)
}

// defaultTokenLife is how many seconds a token is good whose projection does not say it: the API's
// default.
const defaultTokenLife = 3600

func (m *Manager) addToken(ctx context.Context, p *podVolumes, files map[string]file,
	s *v1.ServiceAccountTokenProjection, mode int32,
) error {
	owner := fsUser(p.pod)
	if owner != nil || fsgroup.Of(p.pod) != nil {
		mode = 0o600 // the group's right to read is added with its ownership
	}
	want := tokens.Want{Audience: s.Audience, Seconds: defaultTokenLife}
	if s.ExpirationSeconds != nil {
		want.Seconds = *s.ExpirationSeconds
	}
	token, err := m.tokens.Get(ctx, p.pod, want)
	if err != nil {
		return err
	}
	files[s.Path] = file{data: []byte(token.Token), mode: mode, owner: owner}
	return nil
}

func (m *Manager) allocatable() v1.ResourceList {
	if m.opts.Allocatable == nil {
		return nil
	}
	return m.opts.Allocatable()
}

// fsUser is the user that all containers of the pod run as, or nil if that is not said or they
// differ.
func fsUser(pod *v1.Pod) *int64 {
	var user *int64
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		of, ok := securitycontext.DetermineEffectiveRunAsUser(pod, c)
		if !ok || user != nil && *user != *of {
			user = nil
			return false
		}
		user = of
		return true
	})
	return user
}
