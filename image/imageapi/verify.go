package imageapi

import (
	"context"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/image"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

var repairs = map[imagesv1.Repair]image.Repair{
	imagesv1.Repair_REPAIR_NONE:  image.ReportDamage,
	imagesv1.Repair_REPAIR_DROP:  image.DropDamaged,
	imagesv1.Repair_REPAIR_FETCH: image.RefetchDamaged,
}

// Verify reads images and compares them with their digests.
func (s *service) Verify(r *imagesv1.VerifyRequest, out imagesv1.Images_VerifyServer) error {
	repair, known := repairs[r.GetRepair()]
	if !known {
		return status.Errorf(codes.InvalidArgument, "repair: %s is not known", r.GetRepair())
	}
	ctx, cancel := context.WithCancel(out.Context())
	defer cancel()
	var gone error
	found, err := s.deps.Images.Verify(ctx, image.VerifyOptions{
		Images: r.GetImages(),
		Repair: repair,
		Auth:   auth(r.GetCredentials()),
		Progress: func(kind string, d digest.Digest) {
			if gone == nil {
				if gone = out.Send(&imagesv1.VerifyResponse{Kind: kind, Digest: d.String()}); gone != nil {
					cancel()
				}
			}
		},
	})
	if gone != nil {
		return gone
	}
	if err != nil {
		return err
	}
	return out.Send(&imagesv1.VerifyResponse{Result: verified(found)})
}

func verified(v image.Verified) *imagesv1.VerifyResult {
	r := &imagesv1.VerifyResult{
		Documents: int64(v.Documents), Blobs: int64(v.Blobs), Layers: int64(v.Layers), Fetched: v.Refetched,
	}
	for _, d := range v.Damaged {
		r.Damaged = append(r.Damaged, &imagesv1.Damage{Kind: d.Kind, Digest: d.Digest.String(), Problem: d.Cause.Error(), Images: d.Images})
	}
	for _, d := range v.Unverifiable {
		r.Unverifiable = append(r.Unverifiable, d.String())
	}
	for _, name := range slices.Sorted(maps.Keys(v.Dropped)) {
		dropped := &imagesv1.Dropped{Image: name}
		if err := v.Dropped[name]; err != nil {
			dropped.Reason = err.Error()
		}
		r.Dropped = append(r.Dropped, dropped)
	}
	return r
}
