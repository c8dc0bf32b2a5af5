package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/internal/boundedjson"
)

// Extend makes an image of another one, found as by Get, and one layer more: what write
// writes, a tar archive. change makes its configuration of the other's. Kinds: ErrNotFound,
// ErrInvalidReference, ErrInvalidImage.
func (s *Store) Extend(ctx context.Context, refOrID, ref string, change func(*ocispec.Image) error,
	write func(context.Context, io.Writer) error,
) (Image, error) {
	n, err := parseTag(ref)
	if err != nil {
		return Image{}, err
	}
	e, err := s.index.Present().Entry(refOrID)
	if err != nil {
		return Image{}, err
	}
	b := base{layers: e.Layers}
	if b.original, err = s.blobs.Read(ctx, e.Config); err == nil {
		err = boundedjson.Unmarshal(b.original, &b.config)
	}
	if err != nil {
		return Image{}, fmt.Errorf("read image %s: %w", refOrID, err)
	}
	if err := change(&b.config); err != nil {
		return Image{}, err
	}
	img, err := s.adder.compose(ctx, n, b, func(ctx context.Context, w io.Writer) error {
		z := gzip.NewWriter(w)
		return errors.Join(write(ctx, z), z.Close())
	})
	if err != nil {
		return Image{}, fmt.Errorf("make image %s: %w", n, err)
	}
	return img, nil
}

// keepUnknown adds to a new configuration what the original has and the specification
// does not know: health checks, triggers, and whatever else other tools put there.
func keepUnknown(original, made []byte) ([]byte, error) {
	if original == nil {
		return made, nil
	}
	var known ocispec.Image
	if err := boundedjson.Unmarshal(original, &known); err != nil {
		return nil, err
	}
	plain, err := json.Marshal(known)
	if err != nil {
		return nil, err
	}
	var all, understood, result map[string]any
	if err := errors.Join(boundedjson.Unmarshal(original, &all), boundedjson.Unmarshal(plain, &understood),
		boundedjson.Unmarshal(made, &result)); err != nil {
		return nil, err
	}
	addMissing(all, understood, result)
	return json.Marshal(result)
}

// addMissing copies to result what all has and understood has not, maps within maps too.
func addMissing(all, understood, result map[string]any) {
	for k, v := range all {
		u, known := understood[k]
		if !known {
			if _, there := result[k]; !there && v != nil && !isEmpty(v) {
				result[k] = v
			}
			continue
		}
		inner, a := v.(map[string]any)
		innerKnown, b := u.(map[string]any)
		innerResult, c := result[k].(map[string]any)
		if a && b && c {
			addMissing(inner, innerKnown, innerResult)
		}
	}
}

// isEmpty says that a value means nothing: a field that is known but empty is left out
// when the configuration is written, and must not come back with what it was.
func isEmpty(v any) bool {
	switch v := v.(type) {
	case string:
		return v == ""
	case bool:
		return !v
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}
