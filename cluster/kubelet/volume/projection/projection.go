// Package projection makes volumes whose files come from the API: config maps, secrets, tokens and
// what the API has of the pod. It brings them up to date as a whole, at once.
package projection

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	resourceapi "k8s.io/kubernetes/pkg/api/v1/resource"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/pkg/securitycontext"

	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/coracle-project/coracle/cluster/internal/rmtree"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/fsgroup"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
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

// Maker makes the projections of a node. It has no state: what is up to date is seen on disk.
type Maker struct {
	Dirs   layout.Dirs
	Tokens *tokens.Cache
	// Allocatable returns what the node can give to pods, nil if that is not known.
	Allocatable func() v1.ResourceList
}

// Held are the objects that the volumes of one pod are made of, held until Release. One call is
// made at a time.
type Held struct {
	objects *watched.Objects
	changed func()
	refs    map[watched.Key]*watched.Ref
}

// Hold returns an empty set of objects. changed is called when one of them is not what it was; it
// must not block.
func Hold(objects *watched.Objects, changed func()) *Held {
	return &Held{objects: objects, changed: changed, refs: map[watched.Key]*watched.Ref{}}
}

// ref returns the reference to an object, held from now on.
func (h *Held) ref(kind watched.Kind, namespace, name string) *watched.Ref {
	key := watched.Key{Kind: kind, Namespace: namespace, Name: name}
	ref := h.refs[key]
	if ref == nil {
		ref = h.objects.Hold(key, h.changed)
		h.refs[key] = ref
	}
	return ref
}

// Release lets go of all objects.
func (h *Held) Release() {
	for key, ref := range h.refs {
		ref.Release()
		delete(h.refs, key)
	}
}

// Is says whether the volume's files come from the API and so may change.
func Is(vol *v1.Volume) bool { return vol.EmptyDir == nil && layout.PluginOf(vol) != "" }

// Make makes or brings up to date a volume whose files come from the API.
func (m Maker) Make(ctx context.Context, pod *v1.Pod, held *Held, vol *v1.Volume) error {
	files, err := m.contents(ctx, pod, held, vol)
	if err != nil {
		return err
	}
	dir := m.Dirs.Volume(pod.UID, vol)
	fresh, err := m.makeBacking(pod, vol, dir)
	if err != nil {
		return err
	}
	err = write(ctx, pod, vol, dir, files)
	if err != nil && fresh {
		// Nothing was there before, so nothing half made stays.
		err = errors.Join(err, rmtree.Path(context.WithoutCancel(ctx), dir))
	}
	return err
}

// makeBacking makes the directory that a projection is written to, on tmpfs if it may hold secrets.
// It reports whether there was none.
func (m Maker) makeBacking(pod *v1.Pod, vol *v1.Volume, dir string) (fresh bool, err error) {
	_, err = os.Lstat(dir)
	fresh = errors.Is(err, fs.ErrNotExist)
	if err := layout.MakeVolume(dir); err != nil {
		return false, err
	}
	if vol.ConfigMap != nil {
		return fresh, nil
	}
	return fresh, mountpoint.Tmpfs(dir, mountpoint.MemoryLimit(m.Allocatable(), pod, nil))
}

func write(ctx context.Context, pod *v1.Pod, vol *v1.Volume, dir string, files map[string]file) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	nested, err := nestedMountPoints(pod, vol.Name)
	if err != nil {
		return err
	}
	for _, name := range nested {
		if err := root.MkdirAll(name, 0o755); err != nil {
			return fmt.Errorf("unable to create nested volume mountpoints: %w", err)
		}
	}
	_, err = writeAtomic(root, files, func() error { return fsgroup.Set(ctx, root, fsgroup.Of(pod), fsgroup.ReadOnly) })
	return err
}

// nestedMountPoints are the paths within the named volume where other volumes are mounted. The
// runtime could not make them itself, since the volume is mounted read-only. Of mount points within
// each other only the outermost counts.
func nestedMountPoints(pod *v1.Pod, name string) ([]string, error) {
	var nested []string
	var refused error
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		var all []string
		for i := range c.VolumeMounts {
			all = append(all, filepath.Clean(c.VolumeMounts[i].MountPath))
		}
		slices.Sort(all)
		for i := range c.VolumeMounts {
			mine := filepath.Clean(c.VolumeMounts[i].MountPath)
			if c.VolumeMounts[i].Name != name {
				continue
			}
			if strings.HasPrefix(mine, "../") {
				refused = fmt.Errorf("invalid container mount point %v", mine)
				return false
			}
			outer := len(nested)
			for _, other := range all {
				inside, ok := strings.CutPrefix(other, mine+"/")
				within := func(n string) bool { return strings.HasPrefix(inside, n+"/") }
				if ok && !slices.ContainsFunc(nested[outer:], within) {
					nested = append(nested, inside)
				}
			}
		}
		return true
	})
	return nested, refused
}

// contents collects what the files of a volume should be now, by their paths in the volume.
func (m Maker) contents(ctx context.Context, pod *v1.Pod, held *Held, vol *v1.Volume) (map[string]file, error) {
	files := map[string]file{}
	switch {
	case vol.ConfigMap != nil:
		s := vol.ConfigMap
		return files, addConfigMap(ctx, pod, held, files, s.Name, s.Items, s.DefaultMode, s.Optional)
	case vol.Secret != nil:
		s := vol.Secret
		return files, addSecret(ctx, pod, held, files, s.SecretName, s.Items, s.DefaultMode, s.Optional)
	case vol.DownwardAPI != nil:
		return files, m.addDownwardAPI(pod, files, vol.DownwardAPI.Items, vol.DownwardAPI.DefaultMode)
	}
	if vol.Projected.DefaultMode == nil {
		return nil, errNoDefaultMode
	}
	var errs []error
	for i := range vol.Projected.Sources {
		if err := m.addSource(ctx, pod, held, files, &vol.Projected.Sources[i], vol.Projected.DefaultMode); err != nil {
			errs = append(errs, err)
		}
	}
	return files, utilerrors.NewAggregate(errs)
}

func (m Maker) addSource(ctx context.Context, pod *v1.Pod, held *Held, files map[string]file,
	source *v1.VolumeProjection, mode *int32,
) error {
	switch {
	case source.ConfigMap != nil:
		s := source.ConfigMap
		return addConfigMap(ctx, pod, held, files, s.Name, s.Items, mode, s.Optional)
	case source.Secret != nil:
		s := source.Secret
		return addSecret(ctx, pod, held, files, s.Name, s.Items, mode, s.Optional)
	case source.DownwardAPI != nil:
		return m.addDownwardAPI(pod, files, source.DownwardAPI.Items, mode)
	case source.ServiceAccountToken != nil:
		return m.addToken(ctx, pod, files, source.ServiceAccountToken, *mode)
	case source.ClusterTrustBundle != nil:
		return errors.New("clusterTrustBundle projections are not served by this kubelet: project a configMap that has the certificates instead")
	case source.PodCertificate != nil:
		return errors.New("podCertificate projections are not served by this kubelet: use a secret instead")
	}
	return errors.New("a projected source is empty or of a kind that this kubelet does not know")
}

func (m Maker) addDownwardAPI(pod *v1.Pod, files map[string]file, items []v1.DownwardAPIVolumeFile, mode *int32) error {
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
				item.ResourceFieldRef, pod, item.ResourceFieldRef.ContainerName, m.Allocatable())
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

func (m Maker) addToken(ctx context.Context, pod *v1.Pod, files map[string]file,
	s *v1.ServiceAccountTokenProjection, mode int32,
) error {
	owner := fsUser(pod)
	if owner != nil || fsgroup.Of(pod) != nil {
		mode = 0o600 // the group's right to read is added with its ownership
	}
	want := tokens.Want{Audience: s.Audience, Seconds: defaultTokenLife}
	if s.ExpirationSeconds != nil {
		want.Seconds = *s.ExpirationSeconds
	}
	token, err := m.Tokens.Get(ctx, pod, want)
	if err != nil {
		return err
	}
	files[s.Path] = file{data: []byte(token.Token), mode: mode, owner: owner}
	return nil
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
