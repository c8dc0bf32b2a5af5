package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/watched"
)

// reportTimeout is how long a pod waits until the API knows that its volume is in use.
const reportTimeout = 30 * time.Second

// apiTimeout bounds a read of the API.
const apiTimeout = 30 * time.Second

func attachKey(name v1.UniqueVolumeName) string { return "attach/" + string(name) }

// Reported is told what the node's status has been written with, or what the API is known to have.
func (n *Node) Reported(inUse []v1.UniqueVolumeName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.reported)
	for _, name := range inUse {
		n.reported[name] = struct{}{}
	}
	close(n.again)
	n.again = make(chan struct{})
}

// NodeChanged is told of the node's object as the API has it now.
func (n *Node) NodeChanged(node *v1.Node) {
	n.registry.NodeIs(node.UID)
	for _, a := range node.Status.VolumesAttached {
		n.wake(attachKey(a.Name))
	}
}

func (n *Node) inUseChanged() {
	if n.opts.Report != nil {
		n.opts.Report()
	}
}

// awaitReported returns when the API knows that the volume is in use: from then on it is not
// detached.
func (n *Node) awaitReported(ctx context.Context, name v1.UniqueVolumeName) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	for {
		n.mu.Lock()
		_, known := n.reported[name]
		again := n.again
		n.mu.Unlock()
		if known {
			return nil
		}
		n.inUseChanged()
		select {
		case <-again:
		case <-ctx.Done():
			return fmt.Errorf("the node's status could not be written with the volume in volumesInUse: %w", ctx.Err())
		}
	}
}

// attached returns what the attacher has said of a volume that is attached to this node. If it is
// not attached, the pod is woken when the node's status says that it is.
func (n *Node) attached(ctx context.Context, s *staged, r *request) (map[string]string, error) {
	if err := n.awaitReported(ctx, s.name()); err != nil {
		return nil, err
	}
	n.wait(attachKey(s.name()), r.user)
	name := attachmentName(s.handle, s.driver, n.opts.NodeName)
	var a *storagev1.VolumeAttachment
	call, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	// A node may read the attachments to it, so it is also forbidden to read one that does not
	// exist.
	a, err := n.opts.Kube.StorageV1().VolumeAttachments().Get(call, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("volume %q is not attached to node %q yet: there is no volumeattachment %s", s.handle, n.opts.NodeName, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read volumeattachment %s: %w", name, err)
	}
	if err := n.checkAttachment(a, s); err != nil {
		return nil, err
	}
	if err := n.checkNode(call, s); err != nil {
		return nil, err
	}
	n.waitNoMore(attachKey(s.name()), r.user)
	return a.Status.AttachmentMetadata, nil
}

func (n *Node) checkAttachment(a *storagev1.VolumeAttachment, s *staged) error {
	failure := a.Status.AttachError
	switch {
	case a.Spec.Attacher != s.driver || a.Spec.NodeName != n.opts.NodeName:
		return fmt.Errorf("volumeattachment %s is of driver %q and node %q: delete it", a.Name, a.Spec.Attacher, a.Spec.NodeName)
	case a.DeletionTimestamp != nil:
		return fmt.Errorf("volume %q is being detached from node %q", s.handle, n.opts.NodeName)
	case a.Status.Attached:
		return nil
	case failure == nil:
		return fmt.Errorf("volume %q is not attached to node %q yet: the attacher of driver %q has not finished", s.handle, n.opts.NodeName,
			s.driver)
	}
	if failure.ErrorCode != nil && *failure.ErrorCode == int32(codes.ResourceExhausted) {
		n.registry.CountAgain(s.driver)
	}
	return fmt.Errorf("volume %q cannot be attached to node %q: %s", s.handle, n.opts.NodeName, failure.Message)
}

// checkNode requires that the node's status lists the volume as attached, read after the status was
// written with the volume in use. The attach controller takes a volume from that list before it
// looks whether the volume is in use, and only then deletes the attachment. So one of the two sees
// the other: an attachment that is about to be deleted is never taken for one that stays.
func (n *Node) checkNode(ctx context.Context, s *staged) error {
	node, err := n.opts.Kube.CoreV1().Nodes().Get(ctx, n.opts.NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", n.opts.NodeName, err)
	}
	if !slices.ContainsFunc(node.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == s.name() }) {
		return fmt.Errorf("volume %q is not attached to node %q yet: the node's status does not list it", s.handle, n.opts.NodeName)
	}
	return nil
}

// secrets reads the secret that a volume names, if it names one. Nodes are granted it with the pod.
func (n *Node) secrets(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	var secret *v1.Secret
	err := watched.OnceGranted(ctx, func() (err error) {
		secret, err = n.opts.Kube.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read secret %s/%s for the driver: %w", ref.Namespace, ref.Name, err)
	}
	values := make(map[string]string, len(secret.Data))
	for k, v := range secret.Data {
		values[k] = string(v)
	}
	return values, nil
}

// errNoSource is of a volume that Serves refuses.
var errNoSource = errors.New("the volume is not of a CSI driver")
