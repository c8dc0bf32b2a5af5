package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	inlineKey  = "csi.storage.k8s.io/ephemeral"
	inlineSize = "size" // an inline volume's attribute, in bytes
	mostOfNode = 64
)

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	types := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_VOLUME_CONDITION,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if d.mountGroup {
		types = append(types, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	}
	r := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range types {
		r.Capabilities = append(r.Capabilities,
			&csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node, MaxVolumesPerNode: mostOfNode, AccessibleTopology: d.topology()}, nil
}

// checkAttached says whether the volume of a request has been attached to this node.
func (d *driver) checkAttached(v volume, publishContext map[string]string) error {
	if !d.attach {
		return nil
	}
	if want := v.ID + "@" + d.node; publishContext[attachment] != want {
		return status.Errorf(codes.FailedPrecondition, "publish_context has the attachment %q, want %q", publishContext[attachment], want)
	}
	if _, attached := v.Nodes[d.node]; !attached {
		return status.Errorf(codes.FailedPrecondition, "volume %s is not attached to %s", v.ID, d.node)
	}
	return nil
}

func (d *driver) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	id, at := req.GetVolumeId(), req.GetStagingTargetPath()
	switch {
	case id == "":
		return nil, missing("volume_id")
	case at == "":
		return nil, missing("staging_target_path")
	case req.GetVolumeCapability() == nil:
		return nil, missing("volume_capability")
	}
	release, err := d.busy.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	v, err := d.store.volume(id)
	if err != nil {
		return nil, err
	}
	if err := d.checkAttached(v, req.GetPublishContext()); err != nil {
		return nil, err
	}
	image := d.store.image("volumes", id)
	if req.GetVolumeCapability().GetBlock() != nil {
		loops, err := findLoops(image)
		if err == nil && len(loops) == 0 {
			var device *os.File
			if device, err = attachLoop(image, 0); err == nil {
				err = device.Close()
			}
		}
		return &csi.NodeStageVolumeResponse{}, internal(err)
	}
	is, err := mounted(at)
	if err == nil && !is {
		if err = os.MkdirAll(at, 0o750); err == nil {
			err = mountImage(image, at, req.GetVolumeCapability().GetMount().GetMountFlags())
		}
	}
	return &csi.NodeStageVolumeResponse{}, internal(err)
}

func (d *driver) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	id, at := req.GetVolumeId(), req.GetStagingTargetPath()
	switch {
	case id == "":
		return nil, missing("volume_id")
	case at == "":
		return nil, missing("staging_target_path")
	}
	release, err := d.busy.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := unmount(at); err != nil {
		return nil, internal(err)
	}
	return &csi.NodeUnstageVolumeResponse{}, internal(detachLoops(d.store.image("volumes", id)))
}

func (d *driver) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	id, at, capability := req.GetVolumeId(), req.GetTargetPath(), req.GetVolumeCapability()
	inline := req.GetVolumeContext()[inlineKey] == "true"
	if err := checkPublish(req, inline); err != nil {
		return nil, err
	}
	release, err := d.busy.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	if inline {
		if err := d.makeInline(id, req.GetVolumeContext()[inlineSize]); err != nil {
			return nil, err
		}
	}
	v, err := d.store.volume(id)
	if err != nil {
		return nil, err
	}
	is, err := mounted(at)
	if err != nil || is {
		return &csi.NodePublishVolumeResponse{}, internal(err)
	}
	image := d.store.image("volumes", id)
	switch {
	case capability.GetBlock() != nil:
		err = publishBlock(image, at, req.GetReadonly())
	case inline:
		if err = os.MkdirAll(at, 0o750); err == nil {
			err = mountImage(image, at, capability.GetMount().GetMountFlags())
		}
	default:
		if err := d.checkAttached(v, req.GetPublishContext()); err != nil {
			return nil, err
		}
		if err = publishStaged(id, req.GetStagingTargetPath(), at, req.GetReadonly()); status.Code(err) == codes.FailedPrecondition {
			return nil, err
		}
	}
	if err == nil && capability.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		err = onlyOne(id, at, req.GetStagingTargetPath())
	}
	if group := capability.GetMount().GetVolumeMountGroup(); err == nil && d.mountGroup && group != "" {
		err = giveGroup(at, group)
	}
	return &csi.NodePublishVolumeResponse{}, internal(err)
}

// checkPublish finds fields that are missing.
func checkPublish(req *csi.NodePublishVolumeRequest, inline bool) error {
	switch {
	case req.GetVolumeId() == "":
		return missing("volume_id")
	case req.GetTargetPath() == "":
		return missing("target_path")
	case req.GetVolumeCapability() == nil:
		return missing("volume_capability")
	case req.GetStagingTargetPath() == "" && !inline:
		return missing("staging_target_path")
	}
	return nil
}

// publishStaged shows a volume that is staged.
func publishStaged(id, staging, at string, readonly bool) error {
	is, err := mounted(staging)
	if err != nil {
		return err
	}
	if !is {
		return status.Errorf(codes.FailedPrecondition, "volume %s is not staged at %s", id, staging)
	}
	if err := os.MkdirAll(at, 0o750); err != nil {
		return err
	}
	return bind(staging, at, readonly)
}

// onlyOne takes the volume away again if it is published for another pod.
func onlyOne(id, at, staging string) error {
	other, err := elsewhere(at, staging)
	if err != nil || other == "" {
		return err
	}
	if err := errors.Join(unmount(at), os.Remove(at)); err != nil {
		return err
	}
	return status.Errorf(codes.FailedPrecondition, "volume %s is published at %s, and may be for one pod only", id, other)
}

// makeInline makes the volume of a pod.
func (d *driver) makeInline(id, text string) error {
	if _, err := d.store.volume(id); status.Code(err) != codes.NotFound {
		return err
	}
	bytes := int64(defaultSize)
	if text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < smallest || n > d.capacity {
			return status.Errorf(codes.InvalidArgument, "the attribute %s=%q is no size from %d to %d", inlineSize, text, smallest, d.capacity)
		}
		bytes = n
	}
	if err := d.store.makeImage("volumes", id, "", bytes); err != nil {
		return err
	}
	return d.store.saveVolume(volume{ID: id, Name: id, Bytes: bytes, OfAPod: true})
}

func publishBlock(image, at string, readonly bool) error {
	loops, err := findLoops(image)
	if err != nil {
		return err
	}
	if len(loops) == 0 {
		return status.Errorf(codes.FailedPrecondition, "no loop device has %s", image)
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(at, os.O_CREATE, 0o660)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return bind(loops[0], at, readonly)
}

func giveGroup(at, group string) error {
	gid, err := strconv.Atoi(group)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "volume_mount_group %q is no number", group)
	}
	return errors.Join(os.Chown(at, -1, gid), os.Chmod(at, 0o770|os.ModeSetgid))
}

func (d *driver) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	id, at := req.GetVolumeId(), req.GetTargetPath()
	switch {
	case id == "":
		return nil, missing("volume_id")
	case at == "":
		return nil, missing("target_path")
	}
	release, err := d.busy.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := unmount(at); err != nil {
		return nil, internal(err)
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) { // never what is in it
		return nil, internal(err)
	}
	if v, err := d.store.volume(id); err == nil && v.OfAPod {
		return &csi.NodeUnpublishVolumeResponse{}, d.store.remove("volumes", id)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (d *driver) NodeGetVolumeStats(_ context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	id, at := req.GetVolumeId(), req.GetVolumePath()
	switch {
	case id == "":
		return nil, missing("volume_id")
	case at == "":
		return nil, missing("volume_path")
	}
	v, err := d.store.volume(id)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(at)
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "volume_path: %v", err)
	}
	r := &csi.NodeGetVolumeStatsResponse{VolumeCondition: d.condition(id)}
	if info.Mode()&os.ModeDevice != 0 {
		r.Usage = []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: v.Bytes}}
		return r, nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(at, &fs); err != nil {
		return nil, internal(err)
	}
	block := int64(fs.Bsize)
	r.Usage = []*csi.VolumeUsage{
		{
			Unit: csi.VolumeUsage_BYTES, Total: int64(fs.Blocks) * block, Available: int64(fs.Bavail) * block,
			Used: int64(fs.Blocks-fs.Bfree) * block,
		},
		{Unit: csi.VolumeUsage_INODES, Total: int64(fs.Files), Available: int64(fs.Ffree), Used: int64(fs.Files - fs.Ffree)},
	}
	return r, nil
}

func (d *driver) NodeExpandVolume(_ context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	id, at := req.GetVolumeId(), req.GetVolumePath()
	switch {
	case id == "":
		return nil, missing("volume_id")
	case at == "":
		return nil, missing("volume_path")
	}
	release, err := d.busy.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	v, err := d.store.volume(id)
	if err != nil {
		return nil, err
	}
	image := d.store.image("volumes", id)
	if err := growLoops(image); err != nil {
		return nil, internal(err)
	}
	if info, err := os.Stat(at); err != nil {
		return nil, status.Errorf(codes.NotFound, "volume_path: %v", err)
	} else if info.IsDir() {
		err = growFileSystem(at)
		if err != nil {
			return nil, internal(err)
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Bytes}, nil
}

// internal is an error of the machine; errors with a code keep it.
func internal(err error) error {
	if err == nil || status.Code(err) != codes.Unknown {
		return err
	}
	return status.Error(codes.Internal, err.Error())
}
