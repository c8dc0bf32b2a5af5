package main

import (
	"context"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// defaultSize is that of a volume whose size no one says; the kernel grows no btrfs that is
	// smaller than smallest.
	defaultSize, smallest = 256 << 20, 256 << 20
	// attachment is the key, in the context of an attached volume, of what the node service checks.
	attachment = "attachment"
	zoneSuffix = "/zone" // of the key of the topology
)

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: version}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := func(t csi.PluginCapability_Service_Type) *csi.PluginCapability {
		return &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}}
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		service(csi.PluginCapability_Service_CONTROLLER_SERVICE),
		service(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		{
			Type: &csi.PluginCapability_VolumeExpansion_{
				VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE},
			},
		},
	}}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context,
	*csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	types := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_VOLUME_CONDITION,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if d.attach {
		types = append(types, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	}
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range types {
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return r, nil
}

// size is how large a volume will be.
func size(r *csi.CapacityRange, least int64) (int64, error) {
	n := max(r.GetRequiredBytes(), least)
	if n == 0 {
		n = defaultSize
	}
	n = (max(n, smallest) + 4095) &^ 4095
	switch limit := r.GetLimitBytes(); {
	case r.GetRequiredBytes() < 0 || limit < 0:
		return 0, status.Error(codes.InvalidArgument, "a size is negative")
	case limit > 0 && n > limit && r.GetRequiredBytes() == 0 && limit >= max(least, smallest):
		return limit &^ 4095, nil
	case limit > 0 && n > limit:
		return 0, status.Errorf(codes.OutOfRange, "the volume needs %d bytes, the limit is %d", n, limit)
	}
	return n, nil
}

// source is what a volume is made of: its name in records, its image and its size.
func (d *driver) source(s *csi.VolumeContentSource) (name, image string, bytes int64, err error) {
	switch {
	case s == nil:
		return "", "", 0, nil
	case s.GetSnapshot() != nil:
		from, err := d.store.snapshot(s.GetSnapshot().GetSnapshotId())
		return "snapshot:" + from.ID, d.store.image("snapshots", from.ID), from.Bytes, err
	case s.GetVolume() != nil:
		from, err := d.store.volume(s.GetVolume().GetVolumeId())
		return "volume:" + from.ID, d.store.image("volumes", from.ID), from.Bytes, err
	}
	return "", "", 0, status.Error(codes.InvalidArgument, "the source of the volume's content is neither snapshot nor volume")
}

func checkCapabilities(list []*csi.VolumeCapability) error {
	if len(list) == 0 {
		return missing("volume_capabilities")
	}
	for _, c := range list {
		if c.GetMount() == nil && c.GetBlock() == nil {
			return missing("access_type")
		}
		if fs := c.GetMount().GetFsType(); fs != "" && fs != fileSystem {
			return status.Errorf(codes.InvalidArgument, "file system %q: %s is the only one", fs, fileSystem)
		}
		switch c.GetAccessMode().GetMode() {
		case csi.VolumeCapability_AccessMode_UNKNOWN:
			return missing("access_mode")
		case csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:
			return status.Error(codes.InvalidArgument, "a volume is written to on one node only")
		}
	}
	return nil
}

func (d *driver) topology() *csi.Topology {
	return &csi.Topology{Segments: map[string]string{d.name + zoneSuffix: d.zone}}
}

// reachable says whether a volume of ours can be where it has to be.
func (d *driver) reachable(r *csi.TopologyRequirement) error {
	places := append(r.GetRequisite(), r.GetPreferred()...)
	for _, place := range places {
		if zone, ok := place.GetSegments()[d.name+zoneSuffix]; !ok || zone == d.zone {
			return nil
		}
	}
	if len(places) == 0 {
		return nil
	}
	return status.Errorf(codes.ResourceExhausted, "volumes are in the zone %q only", d.zone)
}

func (d *driver) describe(v volume) *csi.Volume {
	r := &csi.Volume{
		VolumeId: v.ID, CapacityBytes: v.Bytes, VolumeContext: map[string]string{"name": v.Name},
		AccessibleTopology: []*csi.Topology{d.topology()},
	}
	switch {
	case len(v.Source) > 9 && v.Source[:9] == "snapshot:":
		r.ContentSource = &csi.VolumeContentSource{
			Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.Source[9:]}},
		}
	case len(v.Source) > 7 && v.Source[:7] == "volume:":
		r.ContentSource = &csi.VolumeContentSource{
			Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.Source[7:]}},
		}
	}
	return r
}

func (d *driver) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if req.GetName() == "" {
		return nil, missing("name")
	}
	if err := checkCapabilities(req.GetVolumeCapabilities()); err != nil {
		return nil, err
	}
	if err := d.reachable(req.GetAccessibilityRequirements()); err != nil {
		return nil, err
	}
	id := makeID(req.GetName())
	release, err := d.busy.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	if old, err := d.store.volume(id); err == nil {
		r := req.GetCapacityRange()
		if old.Bytes < r.GetRequiredBytes() || r.GetLimitBytes() > 0 && old.Bytes > r.GetLimitBytes() {
			return nil, status.Errorf(codes.AlreadyExists, "volume %q exists with %d bytes", old.Name, old.Bytes)
		}
		return &csi.CreateVolumeResponse{Volume: d.describe(old)}, nil
	}
	from, image, least, err := d.source(req.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	bytes, err := size(req.GetCapacityRange(), least)
	if err != nil {
		return nil, err
	}
	free, err := d.free()
	if err != nil {
		return nil, err
	}
	if bytes > free {
		return nil, status.Errorf(codes.ResourceExhausted, "%d bytes are free, the volume needs %d", free, bytes)
	}
	if err := d.store.makeImage("volumes", id, image, bytes); err != nil {
		return nil, err
	}
	v := volume{ID: id, Name: req.GetName(), Bytes: bytes, Source: from}
	if err := d.store.saveVolume(v); err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: d.describe(v)}, nil
}

func (d *driver) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id := req.GetVolumeId()
	if id == "" {
		return nil, missing("volume_id")
	}
	release, err := d.busy.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	v, err := d.store.volume(id)
	switch {
	case status.Code(err) == codes.NotFound: // what a crash may have left is removed
	case err != nil:
		return nil, err
	case len(v.Nodes) > 0:
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to %v", id, v.Nodes)
	}
	return &csi.DeleteVolumeResponse{}, d.store.remove("volumes", id)
}

func (d *driver) ControllerPublishVolume(_ context.Context,
	req *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	if !d.attach {
		return nil, status.Error(codes.Unimplemented, "volumes are not attached")
	}
	id, node := req.GetVolumeId(), req.GetNodeId()
	switch {
	case id == "":
		return nil, missing("volume_id")
	case node == "":
		return nil, missing("node_id")
	case req.GetVolumeCapability() == nil:
		return nil, missing("volume_capability")
	}
	if err := checkCapabilities([]*csi.VolumeCapability{req.GetVolumeCapability()}); err != nil {
		return nil, err
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
	if !d.store.hasNode(node) {
		return nil, status.Errorf(codes.NotFound, "node %q does not exist", node)
	}
	readonly, attached := v.Nodes[node]
	switch {
	case attached && readonly != req.GetReadonly():
		return nil, status.Errorf(codes.AlreadyExists, "volume %s is attached to %s with readonly %v", id, node, readonly)
	case !attached && len(v.Nodes) > 0:
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to %v", id, v.Nodes)
	case !attached:
		v.Nodes = map[string]bool{node: req.GetReadonly()}
		v.Mode = req.GetVolumeCapability().GetAccessMode().GetMode().String()
		if err := d.store.saveVolume(v); err != nil {
			return nil, err
		}
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{attachment: id + "@" + node}}, nil
}

func (d *driver) ControllerUnpublishVolume(_ context.Context,
	req *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	id, node := req.GetVolumeId(), req.GetNodeId()
	if id == "" {
		return nil, missing("volume_id")
	}
	release, err := d.busy.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	v, err := d.store.volume(id)
	if status.Code(err) == codes.NotFound {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if _, attached := v.Nodes[node]; attached || node == "" {
		delete(v.Nodes, node)
		if node == "" {
			v.Nodes = nil
		}
		if err := d.store.saveVolume(v); err != nil {
			return nil, err
		}
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (d *driver) ValidateVolumeCapabilities(_ context.Context,
	req *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if req.GetVolumeId() == "" {
		return nil, missing("volume_id")
	}
	if len(req.GetVolumeCapabilities()) == 0 {
		return nil, missing("volume_capabilities")
	}
	if _, err := d.store.volume(req.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkCapabilities(req.GetVolumeCapabilities()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: req.GetVolumeContext(), VolumeCapabilities: req.GetVolumeCapabilities(), Parameters: req.GetParameters(),
	}}, nil
}

// page is the part of a list that a call asks for, and where the next one starts.
func page[T any](list []T, token string, most int32) (part []T, next string, err error) {
	from := 0
	if token != "" {
		if from, err = strconv.Atoi(token); err != nil || from < 0 || from > len(list) {
			return nil, "", status.Errorf(codes.Aborted, "starting_token %q is none of ours", token)
		}
	}
	if most < 0 {
		return nil, "", status.Error(codes.InvalidArgument, "max_entries is negative")
	}
	to := len(list)
	if most > 0 && from+int(most) < to {
		to = from + int(most)
		next = strconv.Itoa(to)
	}
	return list[from:to], next, nil
}

func (d *driver) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	list, err := all[volume](d.store, "volumes")
	if err != nil {
		return nil, err
	}
	part, next, err := page(list, req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	r := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range part {
		status := &csi.ListVolumesResponse_VolumeStatus{VolumeCondition: d.condition(v.ID)}
		for node := range v.Nodes {
			status.PublishedNodeIds = append(status.PublishedNodeIds, node)
		}
		r.Entries = append(r.Entries, &csi.ListVolumesResponse_Entry{Volume: d.describe(v), Status: status})
	}
	return r, nil
}

func (d *driver) ControllerGetVolume(_ context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if req.GetVolumeId() == "" {
		return nil, missing("volume_id")
	}
	v, err := d.store.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	status := &csi.ControllerGetVolumeResponse_VolumeStatus{VolumeCondition: d.condition(v.ID)}
	for node := range v.Nodes {
		status.PublishedNodeIds = append(status.PublishedNodeIds, node)
	}
	return &csi.ControllerGetVolumeResponse{Volume: d.describe(v), Status: status}, nil
}

func (d *driver) condition(id string) *csi.VolumeCondition {
	message, abnormal := d.store.condition(id)
	return &csi.VolumeCondition{Abnormal: abnormal, Message: message}
}

// free is how many bytes no volume has.
func (d *driver) free() (int64, error) {
	list, err := all[volume](d.store, "volumes")
	free := d.capacity
	for _, v := range list {
		free -= v.Bytes
	}
	return max(free, 0), err
}

func (d *driver) GetCapacity(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if zone, ok := req.GetAccessibleTopology().GetSegments()[d.name+zoneSuffix]; ok && zone != d.zone {
		return &csi.GetCapacityResponse{}, nil
	}
	free, err := d.free()
	if err != nil {
		return nil, err
	}
	return &csi.GetCapacityResponse{AvailableCapacity: free}, nil
}

func (d *driver) ControllerExpandVolume(_ context.Context,
	req *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	id := req.GetVolumeId()
	if id == "" {
		return nil, missing("volume_id")
	}
	if req.GetCapacityRange() == nil {
		return nil, missing("capacity_range")
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
	bytes, err := size(req.GetCapacityRange(), v.Bytes)
	if err != nil {
		return nil, err
	}
	free, err := d.free()
	if err != nil {
		return nil, err
	}
	if bytes-v.Bytes > free {
		return nil, status.Errorf(codes.OutOfRange, "%d bytes are free, the volume needs %d more", free, bytes-v.Bytes)
	}
	if err := growImage(d.store.image("volumes", id), bytes); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	v.Bytes = bytes
	if err := d.store.saveVolume(v); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: bytes, NodeExpansionRequired: true}, nil
}
