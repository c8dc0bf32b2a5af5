package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	recording "k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/events"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/watched"
)

// moment is when a volume is looked at.
type moment int

const (
	// atMount is when the volume has just been published. A driver has not refused to grow it
	// since.
	atMount moment = iota
	// later is when it has been in use.
	later
)

// growth is what a claim says of its size.
type growth struct {
	claim *v1.PersistentVolumeClaim
	pv    *v1.PersistentVolume
	size  int64
	// wanted is the size that the claim asks for. It may be less than size: the owner has lowered
	// it since.
	wanted int64
	// told is that the claim has its size already: another node has grown a shared volume.
	told bool
}

// failedGrowth is a growth that the driver has ended with an error.
type failedGrowth struct {
	size, wanted int64
	// refused has the same growth not tried again while the volume is mounted.
	refused bool
}

// growths have drivers grow volumes whose claims wait for that. What is known of earlier tries
// is in the index.
type growths struct {
	nodeName string
	kube     kubernetes.Interface
	recorder recording.EventRecorder
	places   places
	index    *index
	usages   *usages
	requests *requests
	stages   *stages
}

// of reads the claim and the volume as they are now; nil if nothing is to be done. The
// conditions are upstream's.
func (x *growths) of(ctx context.Context, v *source.Spec) (*growth, error) {
	if v.PV == nil || v.PV.Spec.ClaimRef == nil {
		return nil, nil
	}
	if v.ReadOnly || v.PV.Spec.CSI != nil && v.PV.Spec.CSI.ReadOnly {
		return nil, nil // a file system that is mounted read-only does not grow
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	core, ref := x.kube.CoreV1(), v.PV.Spec.ClaimRef
	g := &growth{}
	err := watched.OnceGranted(ctx, func() (err error) {
		if g.pv, err = core.PersistentVolumes().Get(ctx, v.PV.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		g.claim, err = core.PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	if g.claim.UID != ref.UID || g.pv.UID != v.PV.UID || g.pv.Spec.CSI == nil {
		return nil, nil // others of the same names
	}
	g.size, g.wanted = g.pv.Spec.Capacity.Storage().Value(), g.claim.Spec.Resources.Requests.Storage().Value()
	status := g.claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]
	switch {
	case status == v1.PersistentVolumeClaimNodeResizePending || status == v1.PersistentVolumeClaimNodeResizeInProgress:
		return g, nil
	case status == "" && g.claim.Status.Capacity.Storage().Value() >= g.size && slices.Contains(g.claim.Spec.AccessModes, v1.ReadWriteMany) &&
		!metav1.HasAnnotation(g.claim.ObjectMeta, volumetypes.NodeExpansionNotRequired) && x.toldSize(v) < g.size:
		g.told = true
		return g, nil
	}
	return nil, nil
}

// toldSize is the size of a volume that its driver was told on this node; the first time, what the
// volume had when it was mounted.
func (x *growths) toldSize(v *source.Spec) (size int64) {
	x.index.update(v.State, func(p *publication) {
		if p.grown == nil {
			p.grown = new(v.PV.Spec.Capacity.Storage().Value())
		}
		size = *p.grown
	})
	return size
}

// mayGrow says whether a claim waits for its volume to grow.
func (x *growths) mayGrow(ctx context.Context, v *source.Spec) bool {
	g, err := x.of(ctx, v)
	return err != nil || g != nil
}

// grow has the driver grow what is on the volume, if the claim waits for that, and writes into the
// claim how that went.
func (x *growths) grow(ctx context.Context, session *client.Session, r *request, when moment) error {
	g, err := x.of(ctx, r.spec)
	if err != nil || g == nil {
		return err
	}
	if earlier := x.index.get(r.spec.State).failed; when == later && earlier != nil && *earlier == (failedGrowth{g.size, g.wanted, true}) {
		return nil
	}
	if !session.Can[csipb.NodeServiceCapability_RPC_EXPAND_VOLUME] {
		if g.told {
			return nil
		}
		return x.growFailed(g, r, fmt.Errorf("NodeExpand is not supported by the CSI driver %s", r.driverName), codes.Unimplemented)
	}
	if !g.told {
		if g.claim, err = volumeutil.MarkNodeExpansionInProgress(g.claim, x.kube); err != nil {
			return err
		}
	}
	if err := x.expand(ctx, session, r, g); err != nil {
		return x.growFailed(g, r, err, client.CodeOf(err))
	}
	x.index.update(r.spec.State, func(p *publication) { p.grown, p.failed = &g.size, nil })
	x.usages.forget(r.spec.State)
	const done = "MountVolume.NodeExpandVolume succeeded for volume %q %s"
	x.recorder.Eventf(r.spec.Pod, v1.EventTypeNormal, events.FileSystemResizeSuccess, done, r.spec.Name, x.nodeName)
	x.recorder.Eventf(g.claim, v1.EventTypeNormal, events.FileSystemResizeSuccess, done, r.spec.Name, x.nodeName)
	if g.told {
		return nil
	}
	_, err = volumeutil.MarkNodeExpansionFinishedWithRecovery(g.claim, *g.pv.Spec.Capacity.Storage(), x.kube)
	return err
}

func (x *growths) expand(ctx context.Context, session *client.Session, r *request, g *growth) error {
	secrets, err := x.requests.secrets(ctx, g.pv.Spec.CSI.NodeExpandSecretRef)
	if err != nil {
		return err
	}
	request := &csipb.NodeExpandVolumeRequest{
		VolumeId: r.handle, VolumePath: session.Seen(x.places.target(r.user, r.spec.Mounted, r.spec.Block)),
		CapacityRange: &csipb.CapacityRange{RequiredBytes: g.size}, VolumeCapability: r.capability(session), Secrets: secrets,
	}
	if session.Can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		s, err := x.stages.use(r)
		if err != nil {
			return err
		}
		request.StagingTargetPath = session.Seen(x.places.stagePath(s))
	}
	return session.Call(ctx, "NodeExpandVolume", func(ctx context.Context) error {
		_, err := session.Node.NodeExpandVolume(ctx, request)
		return err
	})
}

// growFailed tells the pod's and the claim's owner why a volume was not grown. Where trying again
// is of no use, the claim says so and nothing is tried until it changes or the volume is mounted
// again.
//
// A claim whose owner asks for another size by now is told that the growth is infeasible once it
// has failed twice: the controller then goes on with the size that is asked for.
func (x *growths) growFailed(g *growth, r *request, failure error, code codes.Code) error {
	x.recorder.Eventf(r.spec.Pod, v1.EventTypeWarning, events.VolumeResizeFailed, "NodeExpandVolume failed for volume %q: %v",
		r.spec.Name, failure)
	mark, refused := volumeutil.MarkNodeExpansionFailedCondition, false
	if !client.Final(code) {
		return failure // it may go on in the driver
	}
	switch code {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		mark, refused = volumeutil.MarkNodeExpansionInfeasible, true
	case codes.FailedPrecondition, codes.Unimplemented:
		refused = true
	}
	x.index.update(r.spec.State, func(p *publication) {
		if p.failed != nil && g.wanted != g.size {
			mark, refused = volumeutil.MarkNodeExpansionInfeasible, true
		}
		p.failed = &failedGrowth{size: g.size, wanted: g.wanted}
	})
	if !g.told {
		if _, err := mark(g.claim, x.kube, failure); err != nil {
			return errors.Join(failure, err) // tried again: the claim does not say so yet
		}
	}
	x.index.update(r.spec.State, func(p *publication) { p.failed = &failedGrowth{g.size, g.wanted, refused} })
	return failure
}
