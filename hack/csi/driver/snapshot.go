package main

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func describeSnapshot(s snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.Volume, SizeBytes: s.Bytes, CreationTime: timestamppb.New(s.Taken),
		ReadyToUse: true,
	}
}

func (d *driver) CreateSnapshot(_ context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	switch {
	case req.GetName() == "":
		return nil, missing("name")
	case req.GetSourceVolumeId() == "":
		return nil, missing("source_volume_id")
	}
	id := makeID(req.GetName())
	release, err := d.busy.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	if old, err := d.store.snapshot(id); err == nil {
		if old.Volume != req.GetSourceVolumeId() {
			return nil, status.Errorf(codes.AlreadyExists, "snapshot %q is one of volume %s", old.Name, old.Volume)
		}
		return &csi.CreateSnapshotResponse{Snapshot: describeSnapshot(old)}, nil
	}
	v, err := d.store.volume(req.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	s := snapshot{ID: id, Name: req.GetName(), Volume: v.ID, Bytes: v.Bytes, Taken: time.Now()}
	if err := d.store.makeImage("snapshots", id, d.store.image("volumes", v.ID), v.Bytes); err != nil {
		return nil, err
	}
	if err := d.store.saveSnapshot(s); err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: describeSnapshot(s)}, nil
}

func (d *driver) DeleteSnapshot(_ context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	id := req.GetSnapshotId()
	if id == "" {
		return nil, missing("snapshot_id")
	}
	release, err := d.busy.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	return &csi.DeleteSnapshotResponse{}, d.store.remove("snapshots", id)
}

func (d *driver) ListSnapshots(_ context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	list, err := all[snapshot](d.store, "snapshots")
	if err != nil {
		return nil, err
	}
	var wanted []snapshot
	for _, s := range list {
		if (req.GetSnapshotId() == "" || req.GetSnapshotId() == s.ID) && (req.GetSourceVolumeId() == "" || req.GetSourceVolumeId() == s.Volume) {
			wanted = append(wanted, s)
		}
	}
	part, next, err := page(wanted, req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	r := &csi.ListSnapshotsResponse{NextToken: next}
	for _, s := range part {
		r.Entries = append(r.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: describeSnapshot(s)})
	}
	return r, nil
}
