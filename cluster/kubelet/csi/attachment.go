package csi

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/registration"
)

// reportTimeout is how long a pod waits until the API knows that its volume is in use.
const reportTimeout = 30 * time.Second

// apiTimeout bounds a read of the API.
const apiTimeout = 30 * time.Second

func attachKey(name v1.UniqueVolumeName) string { return "attach/" + string(name) }

// attachments say whether volumes are attached to this node, and what the API knows to be in
// use. They are safe for concurrent use.
type attachments struct {
	nodeName string
	kube     kubernetes.Interface
	registry *registration.Registry
	waiting  *waiting
	// report has the node's status written soon.
	report func()

	mu sync.Mutex
	// reported are the volumes that the API knows to be in use; again is closed when they change.
	reported map[v1.UniqueVolumeName]struct{}
	again    chan struct{}
}

// setReported is told what the node's status has been written with, or what the API is known to
// have.
func (x *attachments) setReported(inUse []v1.UniqueVolumeName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.reported)
	for _, name := range inUse {
		x.reported[name] = struct{}{}
	}
	close(x.again)
	x.again = make(chan struct{})
}

// awaitReported returns when the API knows that the volume is in use: from then on it is not
// detached.
func (x *attachments) awaitReported(ctx context.Context, name v1.UniqueVolumeName) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	for {
		x.mu.Lock()
		_, known := x.reported[name]
		again := x.again
		x.mu.Unlock()
		if known {
			return nil
		}
		x.report()
		select {
		case <-again:
		case <-ctx.Done():
			return fmt.Errorf("the node's status could not be written with the volume in volumesInUse: %w", ctx.Err())
		}
	}
}

// attached returns what the attacher has said of a volume that is attached to this node. If it is
// not attached, the pod is woken when the node's status says that it is.
func (x *attachments) attached(ctx context.Context, s *staged, r *request) (map[string]string, error) {
	if err := x.awaitReported(ctx, s.name()); err != nil {
		return nil, err
	}
	x.waiting.add(attachKey(s.name()), r.user)
	name := attachmentName(s.handle, s.driver, x.nodeName)
	var a *storagev1.VolumeAttachment
	call, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	// A node may read the attachments to it, so it is also forbidden to read one that does not
	// exist.
	a, err := x.kube.StorageV1().VolumeAttachments().Get(call, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("volume %q is not attached to node %q yet: there is no volumeattachment %s", s.handle, x.nodeName, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read volumeattachment %s: %w", name, err)
	}
	if err := x.checkAttachment(a, s); err != nil {
		return nil, err
	}
	if err := x.checkNode(call, s); err != nil {
		return nil, err
	}
	x.waiting.remove(attachKey(s.name()), r.user)
	return a.Status.AttachmentMetadata, nil
}

func (x *attachments) checkAttachment(a *storagev1.VolumeAttachment, s *staged) error {
	failure := a.Status.AttachError
	switch {
	case a.Spec.Attacher != s.driver || a.Spec.NodeName != x.nodeName:
		return fmt.Errorf("volumeattachment %s is of driver %q and node %q: delete it", a.Name, a.Spec.Attacher, a.Spec.NodeName)
	case a.DeletionTimestamp != nil:
		return fmt.Errorf("volume %q is being detached from node %q", s.handle, x.nodeName)
	case a.Status.Attached:
		return nil
	case failure == nil:
		return fmt.Errorf("volume %q is not attached to node %q yet: the attacher of driver %q has not finished", s.handle, x.nodeName,
			s.driver)
	}
	if failure.ErrorCode != nil && *failure.ErrorCode == int32(codes.ResourceExhausted) {
		x.registry.CountAgain(s.driver)
	}
	return fmt.Errorf("volume %q cannot be attached to node %q: %s", s.handle, x.nodeName, failure.Message)
}

// checkNode requires that the node's status lists the volume as attached, read after the status was
// written with the volume in use. The attach controller takes a volume from that list before it
// looks whether the volume is in use, and only then deletes the attachment. So one of the two sees
// the other: an attachment that is about to be deleted is never taken for one that stays.
func (x *attachments) checkNode(ctx context.Context, s *staged) error {
	node, err := x.kube.CoreV1().Nodes().Get(ctx, x.nodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", x.nodeName, err)
	}
	if !slices.ContainsFunc(node.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == s.name() }) {
		return fmt.Errorf("volume %q is not attached to node %q yet: the node's status does not list it", s.handle, x.nodeName)
	}
	return nil
}
