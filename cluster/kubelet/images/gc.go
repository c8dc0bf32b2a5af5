package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet/events"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

// GCPolicy says when unused images are removed.
type GCPolicy struct {
	// HighPercent of the disk in use starts a collection, which goes on until LowPercent is
	// reached.
	HighPercent, LowPercent int
	// MinAge is how long an image must have been on the node.
	MinAge time.Duration
	// Every is how often the disk is looked at.
	Every time.Duration
}

// DefaultGCPolicy is upstream's.
var DefaultGCPolicy = GCPolicy{HighPercent: 85, LowPercent: 80, MinAge: 2 * time.Minute, Every: 5 * time.Minute}

// Collector removes images that no container uses when the disk that they are on fills up, those
// first that have not been used for longest.
type Collector struct {
	// Mounted, if set, returns the ids or names of images that are in use as volumes: the runtime's
	// list of containers does not tell. Set it before the collector is used.
	Mounted func() []string

	log      *slog.Logger
	client   *cri.Client
	puller   *Puller
	policy   GCPolicy
	recorder record.EventRecorder
	node     *v1.ObjectReference
	disk     func(path string) (capacity, available int64, err error)

	mu   sync.Mutex
	seen map[string]*use // by image id
}

type use struct {
	first, last time.Time
	// hung says that the runtime did not answer when it last was to remove the image.
	hung bool
}

// NewCollector returns a Collector for the node that node names in events.
func NewCollector(client *cri.Client, p *Puller, policy GCPolicy, recorder record.EventRecorder, node *v1.ObjectReference,
	log *slog.Logger,
) *Collector {
	return &Collector{
		log: log, client: client, puller: p, policy: policy, recorder: recorder, node: node, disk: statfs, seen: map[string]*use{},
	}
}

// Run looks at the disk now and then until ctx ends.
func (g *Collector) Run(ctx context.Context) {
	tick := time.NewTicker(g.policy.Every)
	defer tick.Stop()
	for {
		if err := g.Collect(ctx); err != nil && ctx.Err() == nil {
			g.log.Warn("image garbage collection", "err", err)
			g.recorder.Eventf(g.node, v1.EventTypeWarning, events.ImageGCFailed, "%s", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Collect removes images if the disk is fuller than the policy's high mark, until it is below the
// low one. It is an error when nothing more can be removed before that.
func (g *Collector) Collect(ctx context.Context) error {
	unused, err := g.detect(ctx, time.Now())
	if err != nil {
		return err
	}
	capacity, available, err := g.usage(ctx)
	if err != nil || capacity == 0 {
		return err
	}
	used := 100 - int(available*100/capacity)
	if used < g.policy.HighPercent {
		return nil
	}
	want := capacity*int64(100-g.policy.LowPercent)/100 - available
	g.log.Info("disk of images is filling up: removing unused images", "used_percent", used, "bytes_wanted", want)
	freed, err := g.free(ctx, unused, want, time.Now())
	if freed < want {
		//lint:ignore ST1005 the words are upstream's, for an event
		short := fmt.Errorf(
			"Failed to garbage collect required amount of images. Attempted to free %d bytes, but only found %d bytes eligible to free.", want,
			freed,
		)
		return errors.Join(short, err)
	}
	return err
}

// RemoveUnused removes all images that no container uses and that are not younger than the policy's
// age.
func (g *Collector) RemoveUnused(ctx context.Context) error {
	unused, err := g.detect(ctx, time.Now())
	if err != nil {
		return err
	}
	freed, err := g.free(ctx, unused, math.MaxInt64, time.Now())
	if freed > 0 {
		g.log.Info("removed all unused images", "bytes", freed)
	}
	return err
}

// detect notes which images are there and which are in use, and returns the others.
func (g *Collector) detect(ctx context.Context, now time.Time) ([]*runtimeapi.Image, error) {
	images, err := g.images(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	containers, err := g.client.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	used := sets.New[string]()
	for _, c := range containers.Containers {
		used.Insert(c.ImageId, c.ImageRef, c.GetImage().GetImage())
	}
	if g.Mounted != nil {
		used.Insert(g.Mounted()...)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	there := sets.New[string]()
	var unused []*runtimeapi.Image
	for _, i := range images {
		there.Insert(i.Id)
		u := g.seen[i.Id]
		if u == nil {
			u = &use{first: now}
			g.seen[i.Id] = u
		}
		names := append([]string{i.Id}, append(slices.Clone(i.RepoTags), i.RepoDigests...)...)
		switch {
		case slices.ContainsFunc(names, used.Has):
			u.last = now
		case !i.Pinned:
			unused = append(unused, i)
		}
	}
	for id := range g.seen {
		if !there.Has(id) {
			delete(g.seen, id)
		}
	}
	return unused, nil
}

func (g *Collector) free(ctx context.Context, unused []*runtimeapi.Image, want int64, now time.Time) (int64, error) {
	g.mu.Lock()
	uses := make(map[string]use, len(unused))
	for _, i := range unused {
		uses[i.Id] = *g.seen[i.Id]
	}
	g.mu.Unlock()
	slices.SortFunc(unused, func(a, b *runtimeapi.Image) int {
		ua, ub := uses[a.Id], uses[b.Id]
		if ua.hung != ub.hung {
			if ua.hung {
				return 1 // others first: after this one, no other may be tried
			}
			return -1
		}
		return cmp.Or(ua.last.Compare(ub.last), ua.first.Compare(ub.first))
	})
	freed := int64(0)
	var errs []error
	for _, i := range unused {
		if freed >= want || ctx.Err() != nil {
			break
		}
		if now.Sub(uses[i.Id].first) < g.policy.MinAge {
			continue
		}
		// One that cannot be removed must not keep the others on the disk.
		if err := g.remove(ctx, i.Id); err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", i.Id, err))
			if grpcstatus.Code(err) == codes.DeadlineExceeded {
				// A runtime that hangs would do so for each image, and evictions wait for this.
				g.setHung(i.Id)
				return freed, errors.Join(errs...)
			}
			continue
		}
		freed += int64(i.Size)
	}
	if left, err := g.images(ctx); err == nil && g.puller != nil {
		ids := make([]string, 0, len(left))
		for _, i := range left {
			ids = append(ids, i.Id)
		}
		g.puller.prune(ctx, ids, now)
	}
	return freed, errors.Join(errs...)
}

func (g *Collector) setHung(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if u := g.seen[id]; u != nil {
		u.hung = true
	}
}

// A runtime that does not answer for so long is taken to hang: no more is asked of it this time.
const (
	removeTimeout = 2 * time.Minute
	askTimeout    = time.Minute
)

func (g *Collector) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	_, err := g.client.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id}})
	return err
}

func (g *Collector) images(ctx context.Context) ([]*runtimeapi.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	resp, err := g.client.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	return resp.GetImages(), err
}

// usage returns the size and the free space of the disk that images are on.
func (g *Collector) usage(ctx context.Context) (capacity, available int64, err error) {
	dir, err := g.Dir(ctx)
	if err != nil || dir == "" {
		return 0, 0, err
	}
	return g.disk(dir)
}

// Dir returns the directory that the runtime has its images in, nothing if it does not say.
func (g *Collector) Dir(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := g.client.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	for _, fs := range info.GetImageFilesystems() {
		if path := fs.GetFsId().GetMountpoint(); path != "" {
			return path, err
		}
	}
	return "", err
}

func statfs(path string) (capacity, available int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	return int64(s.Blocks) * s.Bsize, int64(s.Bavail) * s.Bsize, nil
}

// prune forgets who pulled images that are no longer among these.
func (p *Puller) prune(ctx context.Context, ids []string, until time.Time) {
	p.records.PruneUnknownRecords(ctx, ids, until)
}
