package attachdetach

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	podindex "k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/volume/common"
)

// claimsOf returns the keys of the claims that a pod names.
var claimsOf = common.PodPVCIndexFunc()

// ofPod returns the volumes of a pod, and its node if something is attached to it.
func (c *controller) ofPod(obj any) []string {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil
	}
	keys := c.volumesOfPod(pod)
	if len(keys) == 0 {
		if claims, _ := claimsOf(pod); len(claims) == 0 {
			return nil
		}
	}
	// A claim may have gone with its pod, and the node is still to let go of the volume.
	if attached, _ := c.attachmentIndex.IndexKeys(byNode, pod.Spec.NodeName); len(attached) > 0 {
		keys = append(keys, nodeKey+pod.Spec.NodeName)
	}
	return keys
}

func (c *controller) volumesOfPod(pod *corev1.Pod) (keys []string) {
	claims, _ := claimsOf(pod)
	for _, key := range claims {
		if pv := c.volumeOfClaim(key); pv != nil {
			keys = append(keys, volumeOf(pv.Spec.CSI).key())
		}
	}
	return keys
}

// volumeOfClaim returns the PersistentVolume of a driver that a claim names, nil if it names none.
func (c *controller) volumeOfClaim(key string) *corev1.PersistentVolume {
	namespace, name, _ := strings.Cut(key, "/")
	claim, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil || claim.Spec.VolumeName == "" {
		return nil
	}
	pv, err := c.volumes.Get(claim.Spec.VolumeName)
	if err != nil || pv.Spec.CSI == nil {
		return nil
	}
	return pv
}

// ofClaim returns the volume of a claim, and the nodes that it is attached to.
func (c *controller) ofClaim(obj any) []string {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Spec.VolumeName == "" {
		return nil
	}
	keys := c.nodesOf(claim.Spec.VolumeName)
	if pv, err := c.volumes.Get(claim.Spec.VolumeName); err == nil && pv.Spec.CSI != nil {
		keys = append(keys, volumeOf(pv.Spec.CSI).key())
	}
	return keys
}

// ofVolume returns a volume, the nodes and volumes of its PersistentVolume's attachments, and the
// volumes that wait for their names.
func (c *controller) ofVolume(obj any) []string {
	pv, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return nil
	}
	var keys []string
	if pv.Spec.CSI != nil {
		keys = append(keys, volumeOf(pv.Spec.CSI).key())
	}
	attachments, _ := c.attachmentIndex.ByIndex(bySource, pv.Name)
	for _, a := range attachments {
		keys = append(keys, c.ofAttachment(a)...)
	}
	return keys
}

// nodesOf returns the nodes with attachments of a PersistentVolume.
func (c *controller) nodesOf(pv string) (keys []string) {
	attachments, _ := c.attachmentIndex.ByIndex(bySource, pv)
	for _, obj := range attachments {
		keys = append(keys, nodeKey+obj.(*storagev1.VolumeAttachment).Spec.NodeName)
	}
	return keys
}

// ofAttachment returns the node of an attachment, and its volume. One that is not ours may have the
// name that ours would have: then the volumes that wait for it.
func (c *controller) ofAttachment(obj any) []string {
	a, ok := obj.(*storagev1.VolumeAttachment)
	if !ok {
		return nil
	}
	keys := []string{nodeKey + a.Spec.NodeName}
	if v, _, ok := c.known(a); ok {
		return append(keys, v.key())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for v, told := range c.told {
		if v.named(a) { // its PersistentVolume is gone
			keys = append(keys, v.key())
			continue
		}
		for node := range told.waits {
			if v.attachment(node) == a.Name {
				keys = append(keys, v.key())
			}
		}
	}
	return keys
}

// ofNode returns a node that has attachments or reports volumes, the volumes that it reports, and
// those that its pods wait for.
func (c *controller) ofNode(obj any) (keys []string) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	attached, _ := c.attachmentIndex.IndexKeys(byNode, node.Name)
	volumes := append(reported(node), inUse(node)...)
	if len(attached)+len(volumes) > 0 {
		keys = append(keys, nodeKey+node.Name)
	}
	for _, v := range volumes {
		keys = append(keys, v.key())
	}
	pods, _ := c.podIndex.ByIndex(podindex.PodNodeNameKeyIndex, node.Name)
	for _, obj := range pods {
		claims, _ := claimsOf(obj)
		for _, key := range claims {
			pv := c.volumeOfClaim(key)
			if pv == nil {
				continue
			}
			v := volumeOf(pv.Spec.CSI)
			if _, err := c.attachments.Get(v.attachment(node.Name)); err != nil {
				keys = append(keys, v.key())
			}
		}
	}
	return keys
}

// ofDriver returns the volumes of a driver, and the nodes that they are attached to.
func (c *controller) ofDriver(obj any) (keys []string) {
	driver, ok := obj.(*storagev1.CSIDriver)
	if !ok {
		return nil
	}
	volumes, _ := c.volumes.List(labels.Everything())
	for _, pv := range volumes {
		if pv.Spec.CSI != nil && pv.Spec.CSI.Driver == driver.Name {
			keys = append(keys, c.ofVolume(pv)...)
		}
	}
	return keys
}
