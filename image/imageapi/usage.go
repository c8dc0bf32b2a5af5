package imageapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
	"github.com/coracle-project/coracle/internal/treewalk"
	"github.com/coracle-project/coracle/pod"
)

// Usage says whose the bytes under the root directory are: all that is there is looked at.
func (s *service) Usage(ctx context.Context, _ *imagesv1.UsageRequest) (*imagesv1.UsageResponse, error) {
	type sum struct {
		owner *imagesv1.Owner
		treewalk.Size
	}
	sums := map[string]*sum{}
	root, err := os.Open(s.deps.Root)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	err = treewalk.Walk(ctx, int(root.Fd()), func(f treewalk.Found) {
		kind, name, id := classify(path.Join(f.Dir, f.Name))
		o := sums[name]
		if o == nil {
			o = &sum{owner: &imagesv1.Owner{Kind: kind, Name: id}}
			sums[name] = o
		}
		o.Add(f.Size)
	})
	if err != nil {
		return nil, fmt.Errorf("usage of %s: %w", s.deps.Root, err)
	}
	owners := s.owners()
	r := &imagesv1.UsageResponse{Root: s.deps.Root}
	for _, o := range sums {
		o.owner.Bytes, o.owner.Inodes = o.Bytes, o.Inodes()
		o.owner.Owners = slices.Sorted(maps.Keys(owners[o.owner.GetName()]))
		r.Owners = append(r.Owners, o.owner)
	}
	slices.SortFunc(r.Owners, func(a, b *imagesv1.Owner) int {
		return cmp.Or(cmp.Compare(b.GetBytes(), a.GetBytes()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return r, nil
}

// place is a directory whose entries are told one by one, with what they are and what
// comes before an entry's name to make it an id.
type place struct{ dir, kind, prefix string }

// places are those of the image store, of the node's snapshots, and of those of runtime handlers.
var places = slices.Concat(
	[]place{
		{"images/blobs/sha256", "blob", "sha256:"},
		{"images/ingest", "download", ""},
		{"snapshots/lazy", "layer being pulled", "sha256:"},
	},
	snapshotPlaces("snapshots", "layer"),
	snapshotPlaces(handlers+"/overlay", "copy of a layer"),
	snapshotPlaces(handlers+"/erofs", "copy of a layer"),
	snapshotPlaces(handlers+"/native", "copy of a layer"),
)

const handlers = "snapshotters"

func snapshotPlaces(store, layer string) []place {
	return []place{
		{store + "/layers/sha256", layer, "sha256:"},
		{store + "/snapshots", "writable layer", ""},
		{store + "/staging", "being unpacked or deleted", ""},
		{store + "/quarantine", "damaged layer", ""},
	}
}

// classify says what a path below the root directory, "" for itself, is counted for: by the place
// that it is in, or else by its first directory, those of the stores one deeper.
func classify(name string) (kind, sum, id string) {
	for _, p := range places {
		if rest, ok := strings.CutPrefix(name, p.dir+"/"); ok {
			entry, _, _ := strings.Cut(rest, "/")
			return p.kind, path.Join(p.dir, entry), p.prefix + entry
		}
	}
	parts := strings.Split(name, "/")
	depth := 1
	if parts[0] == "images" || parts[0] == "snapshots" || parts[0] == handlers {
		depth = 2
	}
	if parts[0] == "build" {
		return "build cache", parts[0], parts[0]
	}
	sum = path.Join(parts[:min(depth, len(parts))]...)
	return "other", sum, sum
}

// owners are the images and containers that need things, by the things' ids.
func (s *service) owners() map[string]map[string]bool {
	owners := map[string]map[string]bool{}
	own := func(id, owner string) {
		if owners[id] == nil {
			owners[id] = map[string]bool{}
		}
		owners[id][owner] = true
	}
	images := s.imageNames()
	for _, b := range s.deps.Images.Blobs() {
		for _, id := range b.Images {
			own(b.Digest.String(), images[id.String()])
		}
	}
	for _, img := range s.deps.Images.List() {
		for _, l := range img.Layers {
			own(l.String(), images[img.ID.String()])
		}
	}
	containers := map[string]string{}
	for c := range s.deps.Containers.Containers(pod.ContainerFilter{}) {
		containers[c.ID] = "container " + c.Config.Name
		own(c.ID, containers[c.ID]) // of its writable layer, whichever store has that
	}
	for _, snap := range s.deps.Snapshots.List() {
		name := cmp.Or(containers[snap.ID], "mount at "+snap.Target)
		own(snap.ID, name)
		for _, l := range snap.Layers {
			if len(owners[l.String()]) == 0 {
				own(l.String(), name) // its image is gone
			}
		}
	}
	return owners
}

// imageNames is what people call each image: its first name, or else its id.
func (s *service) imageNames() map[string]string {
	names := map[string]string{}
	for _, img := range s.deps.Images.List() {
		names[img.ID.String()] = append(append(img.RepoTags[:len(img.RepoTags):len(img.RepoTags)], img.RepoDigests...), img.ID.String())[0]
	}
	return names
}
