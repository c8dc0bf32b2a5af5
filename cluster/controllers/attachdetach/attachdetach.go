// Package attachdetach has CSI volumes attached to the nodes whose pods need them, and detached
// from the others.
//
// It does so by VolumeAttachment objects: a driver's external-attacher makes true what they say.
// The names of these objects and what Nodes' status says of volumes are upstream's, which
// attachers, kubelets and upstream's tests rely on.
//
// Keys are volumes and nodes. The sync of a volume (attach.go) makes the attachments that pods
// need, and tells pods what they wait for. The sync of a node (detach.go) writes
// status.volumesAttached, and deletes the attachments that no pod of the node needs any more. So
// there is one place that decides on a volume, and one that writes to a node, and neither needs a
// lock.
//
// A node and this controller agree as follows. The kubelet writes a volume to status.volumesInUse,
// and mounts it only if it sees it in status.volumesAttached afterwards. This controller takes it
// out of volumesAttached, and deletes the attachment only if it does not see it in volumesInUse
// afterwards. Of the two, at least one sees what the other wrote.
//
// Everything is derived from objects. In memory are only the time since when a node that does not
// answer has a volume too many, what pods have been told, and which attachments may have been made:
// the API server did not answer. After a restart, the first begins again, the second may be told
// again, and the third is in the caches, which are new.
package attachdetach

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	podindex "k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/volume/common"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
	"github.com/coracle-project/coracle/cluster/controllers/upstream"
)

const (
	name    = "attachdetach"
	workers = 5

	// callTimeout bounds each request.
	callTimeout = 30 * time.Second

	volumeKey = "volume/"
	nodeKey   = "node/"
)

// Indexes of the informers.
const (
	byVolume   = "attachdetach-volume"   // PersistentVolumes, and Nodes that report a volume, by its unique name
	bySource   = "attachdetach-source"   // VolumeAttachments by PersistentVolume
	byNode     = "attachdetach-node"     // VolumeAttachments by Node
	byAttacher = "attachdetach-attacher" // VolumeAttachments by driver
)

type controller struct {
	set         *client.Set
	frame       *frame.Controller
	writes      *freshness.Writes
	events      record.EventRecorder
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	nodes       corelisters.NodeLister
	attachments storagelisters.VolumeAttachmentLister
	drivers     storagelisters.CSIDriverLister

	podIndex, volumeIndex, nodeIndex, attachmentIndex cache.Indexer

	mu sync.Mutex
	// overdue is since when a node (by its name) that does not answer has had a volume (by the name
	// of its attachment) that it does not need.
	overdue map[string]map[string]overdue
	// unsure are the nodes to which an attachment of a volume may have been made.
	unsure map[volume]map[string]bool
	// told is what pods know of volumes.
	told map[volume]told
}

// overdue is since when a node has had a volume too many: this attachment of it, or one that is
// gone.
type overdue struct {
	attachment types.UID
	since      time.Time
}

// New returns the controller. It starts with the first PersistentVolume of a CSI driver, the first
// VolumeAttachment, or the first Node that reports such a volume.
func New(set *client.Set) *upstream.OnDemand {
	core := set.Informers.Core().V1()
	return upstream.NewOnDemand(set, name, acts, func() (*frame.Controller, error) {
		c, err := build(set)
		if err != nil {
			return nil, err
		}
		return c.frame, nil
	}, core.PersistentVolumes().Informer(), set.Informers.Storage().V1().VolumeAttachments().Informer(), core.Nodes().Informer())
}

// acts reports whether there is something to do if an object exists.
func acts(obj any) bool {
	switch o := obj.(type) {
	case *corev1.PersistentVolume:
		return o.Spec.CSI != nil
	case *storagev1.VolumeAttachment:
		return true
	case *corev1.Node:
		return len(reported(o)) > 0
	}
	return false
}

func build(set *client.Set) (*controller, error) {
	core, storage := set.Informers.Core().V1(), set.Informers.Storage().V1()
	pods, claims, volumes, nodes := core.Pods(), core.PersistentVolumeClaims(), core.PersistentVolumes(), core.Nodes()
	attachments, drivers := storage.VolumeAttachments(), storage.CSIDrivers()
	c := &controller{
		set: set, writes: freshness.New(set.Logger()),
		claims: claims.Lister(), volumes: volumes.Lister(), nodes: nodes.Lister(),
		attachments: attachments.Lister(), drivers: drivers.Lister(),
		podIndex: pods.Informer().GetIndexer(), volumeIndex: volumes.Informer().GetIndexer(),
		nodeIndex: nodes.Informer().GetIndexer(), attachmentIndex: attachments.Informer().GetIndexer(),
		overdue: map[string]map[string]overdue{}, unsure: map[volume]map[string]bool{}, told: map[volume]told{},
	}
	if err := c.addIndexes(pods.Informer()); err != nil {
		return nil, err
	}
	events, stop := set.Recorder("attachdetach-controller", "")
	c.events = events
	guarded := c.writes.Guard(c.sync, func(key string, d time.Duration) { c.frame.AddAfter(key, d) })
	c.frame = frame.New(name, workers, set.Logger(), guarded)
	c.frame.Also(func(ctx context.Context) { <-ctx.Done(); stop() })
	c.frame.Watch(pods.Informer(), c.ofPod)
	c.frame.Watch(claims.Informer(), c.ofClaim)
	c.frame.Watch(volumes.Informer(), c.ofVolume)
	c.frame.Watch(nodes.Informer(), c.ofNode)
	c.frame.Watch(attachments.Informer(), c.ofAttachment)
	c.frame.Watch(drivers.Informer(), c.ofDriver)
	return c, nil
}

func (c *controller) addIndexes(pods cache.SharedIndexInformer) error {
	if err := podindex.AddPodNodeNameIndexer(pods); err != nil {
		return err
	}
	if err := common.AddPodPVCIndexerIfNotPresent(c.podIndex); err != nil {
		return err
	}
	for _, index := range []struct {
		indexer cache.Indexer
		name    string
		of      cache.IndexFunc
	}{
		{c.volumeIndex, byVolume, func(obj any) ([]string, error) {
			if pv, ok := obj.(*corev1.PersistentVolume); ok && pv.Spec.CSI != nil {
				return []string{string(volumeOf(pv.Spec.CSI).unique())}, nil
			}
			return nil, nil
		}},
		{c.nodeIndex, byVolume, func(obj any) ([]string, error) {
			node, ok := obj.(*corev1.Node)
			if !ok {
				return nil, nil
			}
			var names []string
			for _, v := range append(reported(node), inUse(node)...) {
				names = append(names, string(v.unique()))
			}
			return names, nil
		}},
		{c.attachmentIndex, bySource, func(obj any) ([]string, error) {
			if a, ok := obj.(*storagev1.VolumeAttachment); ok && a.Spec.Source.PersistentVolumeName != nil {
				return []string{*a.Spec.Source.PersistentVolumeName}, nil
			}
			return nil, nil
		}},
		{c.attachmentIndex, byAttacher, func(obj any) ([]string, error) {
			if a, ok := obj.(*storagev1.VolumeAttachment); ok {
				return []string{a.Spec.Attacher}, nil
			}
			return nil, nil
		}},
		{c.attachmentIndex, byNode, func(obj any) ([]string, error) {
			if a, ok := obj.(*storagev1.VolumeAttachment); ok {
				return []string{a.Spec.NodeName}, nil
			}
			return nil, nil
		}},
	} {
		if err := common.AddIndexerIfNotPresent(index.indexer, index.name, index.of); err != nil {
			return err
		}
	}
	return nil
}

func (c *controller) sync(ctx context.Context, key string) error {
	if node, ok := strings.CutPrefix(key, nodeKey); ok {
		return c.syncNode(ctx, key, node)
	}
	v, ok := parse(corev1.UniqueVolumeName(strings.TrimPrefix(key, volumeKey)))
	if !ok {
		return nil
	}
	return c.syncVolume(ctx, key, v)
}
