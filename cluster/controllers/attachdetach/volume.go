package attachdetach

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/kubernetes/pkg/controller/volume/common"
	upstreamvolume "k8s.io/kubernetes/pkg/volume"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"
)

// uniquePrefix begins the names by which Nodes report CSI volumes.
const uniquePrefix = "kubernetes.io/csi/"

// attachmentPrefix begins the names of our attachments. The rest is a SHA-256 sum.
const attachmentPrefix = "csi-"

// volume is what drivers know a volume by. Several PersistentVolumes may be the same one.
type volume struct{ driver, handle string }

func volumeOf(source *corev1.CSIPersistentVolumeSource) volume {
	return volume{driver: source.Driver, handle: source.VolumeHandle}
}

// unique is the name of v in the status of Nodes.
func (v volume) unique() corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(uniquePrefix + v.driver + "^" + v.handle)
}

func (v volume) key() string { return volumeKey + string(v.unique()) }

// parse returns the volume with a unique name. Drivers have no ^ in their names, handles may.
func parse(unique corev1.UniqueVolumeName) (volume, bool) {
	name, ok := strings.CutPrefix(string(unique), uniquePrefix)
	if !ok {
		return volume{}, false
	}
	driver, handle, ok := strings.Cut(name, "^")
	return volume{driver: driver, handle: handle}, ok
}

// attachment is the name of the VolumeAttachment of v to a node, as upstream's and
// external-attachers'.
func (v volume) attachment(node string) string {
	sum := sha256.Sum256([]byte(v.handle + v.driver + node))
	return attachmentPrefix + hex.EncodeToString(sum[:])
}

// named reports whether a has the name that this controller gives to attachments of v.
func (v volume) named(a *storagev1.VolumeAttachment) bool {
	return a.Spec.Attacher == v.driver && a.Name == v.attachment(a.Spec.NodeName)
}

// reported returns the volumes that a node's status says are attached.
func reported(node *corev1.Node) (all []volume) {
	for _, attached := range node.Status.VolumesAttached {
		if v, ok := parse(attached.Name); ok {
			all = append(all, v)
		}
	}
	return all
}

// inUse returns the volumes that a node's kubelet says it has mounted, or is about to.
func inUse(node *corev1.Node) (all []volume) {
	for _, name := range node.Status.VolumesInUse {
		if v, ok := parse(name); ok {
			all = append(all, v)
		}
	}
	return all
}

// known returns the volume that an attachment is of, if it is one that this controller makes or has
// made. Those with other names belong to others, and are left to them. kept is false if no
// PersistentVolume has that volume any more, and only its node knows it.
func (c *controller) known(a *storagev1.VolumeAttachment) (v volume, kept, ok bool) {
	source := a.Spec.Source
	if source.PersistentVolumeName != nil {
		pv, err := c.volumes.Get(*source.PersistentVolumeName)
		if err == nil && pv.Spec.CSI != nil {
			v := volumeOf(pv.Spec.CSI)
			return v, true, v.named(a)
		}
		if !apierrors.IsNotFound(err) {
			return volume{}, false, false
		}
	}
	node, err := c.nodes.Get(a.Spec.NodeName)
	if err != nil {
		return volume{}, false, false
	}
	for _, v := range append(reported(node), inUse(node)...) {
		if v.named(a) {
			return v, false, true
		}
	}
	return volume{}, false, false
}

// abandoned reports whether an attachment is one that this controller has made, by its name, for a
// PersistentVolume that is gone.
func (c *controller) abandoned(a *storagev1.VolumeAttachment) bool {
	sum, ours := strings.CutPrefix(a.Name, attachmentPrefix)
	if _, err := hex.DecodeString(sum); !ours || err != nil || len(sum) != 2*sha256.Size {
		return false
	}
	return c.orphan(a)
}

// orphan reports whether there is no PersistentVolume of the name that an attachment has.
func (c *controller) orphan(a *storagev1.VolumeAttachment) bool {
	if a.Spec.Source.PersistentVolumeName == nil {
		return false
	}
	_, err := c.volumes.Get(*a.Spec.Source.PersistentVolumeName)
	return apierrors.IsNotFound(err)
}

// same reports whether a, which has the name of v's attachment to node, is that attachment. Someone
// else may have taken the name. One whose PersistentVolume is gone is taken for ours.
func (c *controller) same(a *storagev1.VolumeAttachment, v volume, node string) bool {
	source := a.Spec.Source
	if a.Spec.Attacher != v.driver || a.Spec.NodeName != node || source.PersistentVolumeName == nil {
		return false
	}
	pv, err := c.volumes.Get(*source.PersistentVolumeName)
	return apierrors.IsNotFound(err) || err == nil && pv.Spec.CSI != nil && volumeOf(pv.Spec.CSI) == v
}

// need is a pod that uses a volume, by a PersistentVolume.
type need struct {
	pod    *corev1.Pod
	volume *corev1.PersistentVolume
}

// needs returns the pods that use v, by their node.
func (c *controller) needs(v volume) (map[string][]need, error) {
	volumes, err := c.ofUnique(v)
	if err != nil {
		return nil, err
	}
	all := map[string][]need{}
	for _, pv := range volumes {
		ref := pv.Spec.ClaimRef
		if ref == nil {
			continue
		}
		claim, err := c.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if claim.UID != ref.UID || claim.Spec.VolumeName != pv.Name || claim.Status.Phase != corev1.ClaimBound {
			continue // another claim of the same name
		}
		pods, err := c.podIndex.ByIndex(common.PodPVCIndex, claim.Namespace+"/"+claim.Name)
		if err != nil {
			return nil, err
		}
		for _, obj := range pods {
			pod := obj.(*corev1.Pod)
			if pod.Spec.NodeName != "" && !volumeutil.IsPodTerminated(pod, pod.Status) && uses(pod, claim) {
				all[pod.Spec.NodeName] = append(all[pod.Spec.NodeName], need{pod, pv})
			}
		}
	}
	return all, nil
}

// ofUnique returns the PersistentVolumes that are v.
func (c *controller) ofUnique(v volume) ([]*corev1.PersistentVolume, error) {
	objs, err := c.volumeIndex.ByIndex(byVolume, string(v.unique()))
	if err != nil {
		return nil, err
	}
	volumes := make([]*corev1.PersistentVolume, len(objs))
	for i, obj := range objs {
		volumes[i] = obj.(*corev1.PersistentVolume)
	}
	return volumes, nil
}

// uses reports whether a pod has a volume of a claim. A claim that has the name of an ephemeral
// volume's, but is not the pod's, is not used.
func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(vol corev1.Volume) bool {
		if vol.PersistentVolumeClaim != nil {
			return vol.PersistentVolumeClaim.ClaimName == claim.Name
		}
		return vol.Ephemeral != nil && ephemeral.VolumeClaimName(pod, &vol) == claim.Name && ephemeral.VolumeIsForPod(pod, claim) == nil
	})
}

// exclusive reports whether v may be attached to one node only.
func exclusive(volumes []*corev1.PersistentVolume) bool {
	return slices.ContainsFunc(volumes, func(pv *corev1.PersistentVolume) bool {
		return !volumeutil.IsMultiAttachAllowed(upstreamvolume.NewSpecFromPersistentVolume(pv, false))
	})
}

// attachable reports whether volumes of a driver have to be attached. A driver without an object
// says nothing else.
func (c *controller) attachable(driver string) (bool, error) {
	d, err := c.drivers.Get(driver)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return d.Spec.AttachRequired == nil || *d.Spec.AttachRequired, nil
}
