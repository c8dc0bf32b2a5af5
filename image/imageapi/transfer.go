package imageapi

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/coracle-project/coracle/image"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// Pull fetches an image.
func (s *service) Pull(r *imagesv1.PullRequest, out imagesv1.Images_PullServer) error {
	if err := required("image", r.GetImage()); err != nil {
		return err
	}
	var img image.Image
	err := report(out.Context(), out.Send, func(ctx context.Context, n *news) (err error) {
		img, err = s.deps.Images.Pull(ctx, r.GetImage(), image.PullOptions{Auth: auth(r.GetCredentials()), Progress: n.amount, Layer: n.layer})
		return err
	})
	if err != nil {
		return err
	}
	return out.Send(&imagesv1.Progress{Done: img.Size, Total: img.Size, Image: s.one(img)})
}

// Push sends an image to a registry.
func (s *service) Push(r *imagesv1.PushRequest, out imagesv1.Images_PushServer) error {
	if err := required("image", r.GetImage()); err != nil {
		return err
	}
	var pushed image.Pushed
	var done, total int64
	err := report(out.Context(), out.Send, func(ctx context.Context, n *news) (err error) {
		pushed, err = s.deps.Images.Push(ctx, r.GetImage(), r.GetTo(), image.PushOptions{
			Auth: auth(r.GetCredentials()),
			Progress: func(d, t int64) {
				done, total = d, t
				n.amount(d, t)
			},
		})
		return err
	})
	if err != nil {
		return err
	}
	return out.Send(&imagesv1.Progress{Done: done, Total: total, Name: pushed.Name, Digest: pushed.Digest.String(), Notes: pushed.Notes})
}

func auth(c *imagesv1.Credentials) image.Auth {
	return image.Auth{
		Username: c.GetUsername(), Password: c.GetPassword(),
		IdentityToken: c.GetIdentityToken(), RegistryToken: c.GetRegistryToken(),
	}
}

// news is what of some work has not been sent yet.
type news struct {
	some chan struct{} // has room for one: there is something

	mu          sync.Mutex
	done, total int64
	layers      map[int]image.LayerProgress // that have changed, by place
}

func (n *news) amount(done, total int64) {
	n.mu.Lock()
	n.done, n.total = done, total
	n.mu.Unlock()
	n.tell()
}

func (n *news) layer(l image.LayerProgress) {
	n.mu.Lock()
	n.layers[l.Place] = l
	n.mu.Unlock()
	n.tell()
}

func (n *news) tell() {
	select {
	case n.some <- struct{}{}:
	default: // it is known that there is something
	}
}

// take makes a message of what there is.
func (n *news) take() *imagesv1.Progress {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := &imagesv1.Progress{Done: n.done, Total: n.total}
	for _, place := range slices.Sorted(maps.Keys(n.layers)) {
		l := n.layers[place]
		m.Layers = append(m.Layers, &imagesv1.LayerProgress{
			Place: int32(place), Digest: l.Digest.String(), Done: l.Done, Total: l.Total,
			Complete: l.Complete,
		})
	}
	clear(n.layers)
	return m
}

// report does work and sends how far it is. A client that reads slowly gets fewer
// messages, and never holds the work up. If it is gone the work is cancelled.
func report(ctx context.Context, send func(*imagesv1.Progress) error, work func(context.Context, *news) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n := &news{some: make(chan struct{}, 1), layers: map[int]image.LayerProgress{}}
	ended := make(chan error, 1)
	go func() { ended <- work(ctx, n) }()
	for {
		select {
		case <-n.some:
			if err := send(n.take()); err != nil {
				cancel()
				<-ended
				return err
			}
		case err := <-ended:
			return err
		}
	}
}
