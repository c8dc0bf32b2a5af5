// Package claims finds the PersistentVolume of a pod's volume, and records which pods wait for
// claims and volumes.
package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/ephemeral"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/watched"
)

// Resolver finds the volumes of pods' claims. Its only state is in Waiting.
type Resolver struct {
	Kube    kubernetes.Interface
	Waiting *Waiting
	// NodeName and NodeLabels say what node this is. Without labels it reaches no volume that
	// is bound to certain nodes.
	NodeName   string
	NodeLabels func() map[string]string
}

// Spec finds out what the volume is, and checks that this pod may have it on this node.
func (r *Resolver) Spec(ctx context.Context, pod *v1.Pod, vol *v1.Volume) (*source.Spec, error) {
	if vol.PersistentVolumeClaim == nil && vol.Ephemeral == nil {
		return &source.Spec{Name: vol.Name, Inline: vol, Pod: pod}, nil
	}
	claim, err := r.boundClaim(ctx, pod, vol)
	if err != nil {
		return nil, err
	}
	pv, err := r.volumeOf(ctx, pod, claim)
	if err != nil {
		return nil, err
	}
	s := &source.Spec{
		Name: pv.Name, PV: pv, Inline: vol, Pod: pod,
		ReadOnly: readOnlyInPod(pod, claim.Name),
		Block:    pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock,
	}
	if err := checkUse(s); err != nil {
		return nil, err
	}
	if err := r.checkReach(pv); err != nil {
		return nil, err
	}
	return s, layout.PlainNames(s.Name)
}

// readOnlyInPod says whether no volume of the pod may write to the claim: several can be of one.
func readOnlyInPod(pod *v1.Pod, claim string) bool {
	return !slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return NameOf(pod, &v) == claim && !ReadOnly(&v) })
}

// NameOf returns the name of the volume's claim, "" if it has none.
func NameOf(pod *v1.Pod, vol *v1.Volume) string {
	switch {
	case vol.PersistentVolumeClaim != nil:
		return vol.PersistentVolumeClaim.ClaimName
	case vol.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, vol)
	}
	return ""
}

// ReadOnly says whether containers may only read what they mount by this volume.
func ReadOnly(vol *v1.Volume) bool {
	return vol.PersistentVolumeClaim != nil && vol.PersistentVolumeClaim.ReadOnly || vol.CSI != nil && ptr.Deref(vol.CSI.ReadOnly, false)
}

// boundClaim returns the claim of the volume if it is bound. If it is not, the pod is woken when it
// changes.
func (r *Resolver) boundClaim(ctx context.Context, pod *v1.Pod, vol *v1.Volume) (*v1.PersistentVolumeClaim, error) {
	own := vol.PersistentVolumeClaim == nil
	name := NameOf(pod, vol)
	r.Waiting.Add(ClaimKey(pod.Namespace, name), pod.UID) // first: what changes after the answer wakes the pod
	claim, err := getGranted(ctx, func(ctx context.Context) (*v1.PersistentVolumeClaim, error) {
		return r.Kube.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	})
	switch {
	case own && apierrors.IsNotFound(err):
		return nil, fmt.Errorf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
	case err != nil:
		return nil, err // it names the claim
	case own:
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return nil, err
		}
	}
	switch {
	case claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, volumeutil.PVCProtectionFinalizer):
		// One with the finalizer stays until its pods have ended, so a pod that runs already keeps
		// it.
		return nil, fmt.Errorf("persistentvolumeclaim %q is being deleted", name)
	case claim.Status.Phase == v1.ClaimLost:
		return nil, fmt.Errorf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, claim.Spec.VolumeName)
	case claim.Status.Phase != v1.ClaimBound || claim.Spec.VolumeName == "":
		return nil, fmt.Errorf("persistentvolumeclaim %q is not bound to a volume yet (storage class %q): its events say what it waits for",
			name, storagehelpers.GetPersistentVolumeClaimClass(claim))
	}
	r.Waiting.Remove(ClaimKey(pod.Namespace, name), pod.UID)
	return claim, nil
}

// volumeOf returns the PersistentVolume that the claim is bound to. Both have to say so: otherwise
// a claim that names a volume would be enough to read what another one has left in it.
func (r *Resolver) volumeOf(ctx context.Context, pod *v1.Pod, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, error) {
	name := claim.Spec.VolumeName
	r.Waiting.Add(VolumeKey(name), pod.UID)
	pv, err := getGranted(ctx, func(ctx context.Context) (*v1.PersistentVolume, error) {
		return r.Kube.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	})
	if err != nil {
		return nil, err
	}
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID != claim.UID || ref.Namespace != claim.Namespace || ref.Name != claim.Name {
		return nil, fmt.Errorf("persistentvolume %q is not bound to the persistentvolumeclaim %q: it belongs to %s", name, claim.Name,
			ownerOf(ref))
	}
	r.Waiting.Remove(VolumeKey(name), pod.UID)
	return pv, nil
}

func ownerOf(ref *v1.ObjectReference) string {
	if ref == nil {
		return "no claim"
	}
	return fmt.Sprintf("%s/%s with the uid %q", ref.Namespace, ref.Name, ref.UID)
}

// getGranted reads an object that this node is granted with the pod.
func getGranted[T any](ctx context.Context, get func(context.Context) (T, error)) (object T, err error) {
	err = watched.OnceGranted(ctx, func() (err error) {
		object, err = get(ctx)
		return err
	})
	return object, err
}

// checkUse refuses a device where the pod wants files, and the other way round.
func checkUse(s *source.Spec) error {
	mode, wrong := v1.PersistentVolumeFilesystem, "volumeDevices"
	if s.Block {
		mode, wrong = v1.PersistentVolumeBlock, "volumeMounts"
	}
	mounted, device := uses(s.Pod, s.Inline.Name)
	if s.Block && mounted || !s.Block && device {
		return fmt.Errorf("volume %s has volumeMode %s, but is specified in %s", s.Inline.Name, mode, wrong)
	}
	return nil
}

// checkReach refuses a volume that is not on this node.
func (r *Resolver) checkReach(pv *v1.PersistentVolume) error {
	if pv.Spec.NodeAffinity == nil {
		return nil
	}
	if r.NodeLabels == nil {
		return errors.New("the node's labels are not known")
	}
	if err := storagehelpers.CheckNodeAffinity(pv, r.NodeLabels()); err != nil {
		return fmt.Errorf("persistentvolume %q cannot be reached from node %q, its nodeAffinity says: %w", pv.Name, r.NodeName, err)
	}
	return nil
}

// uses says how containers of the pod use a volume: as files, or as a device.
func uses(pod *v1.Pod, name string) (mounted, device bool) {
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		mounted = mounted || slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == name })
		device = device || slices.ContainsFunc(c.VolumeDevices, func(d v1.VolumeDevice) bool { return d.Name == name })
		return true
	})
	return mounted, device
}
