package imageapi

import (
	"context"
	"errors"
	"testing"

	"github.com/coracle-project/coracle/image"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// What has changed of layers since the last message comes with the next one, once.
func TestNewsOfLayers(t *testing.T) {
	n := &news{some: make(chan struct{}, 1), layers: map[int]image.LayerProgress{}}
	n.layer(image.LayerProgress{Place: 1, Digest: "sha256:b", Done: 1, Total: 2})
	n.layer(image.LayerProgress{Place: 0, Digest: "sha256:a", Done: 3, Total: 3})
	n.layer(image.LayerProgress{Place: 1, Digest: "sha256:b", Done: 2, Total: 2, Complete: true})
	n.amount(5, 5)
	m := n.take()
	if l := m.GetLayers(); m.GetDone() != 5 || len(l) != 2 || l[0].GetDigest() != "sha256:a" || l[0].GetComplete() || !l[1].GetComplete() ||
		l[1].GetDone() != 2 {
		t.Errorf("%v", m)
	}
	if m := n.take(); len(m.GetLayers()) != 0 || m.GetDone() != 5 {
		t.Errorf("again: %v", m)
	}
}

// A client that does not read delays no other client, and one that is gone ends its own work.
func TestReport(t *testing.T) {
	reading := make(chan struct{})
	var got []int64
	err := report(t.Context(), func(p *imagesv1.Progress) error {
		got = append(got, p.GetDone())
		if len(got) == 1 {
			<-reading
		}
		return nil
	}, func(_ context.Context, n *news) error {
		for i := range int64(1000) {
			n.layer(image.LayerProgress{Place: int(i % 3), Done: i})
			n.amount(i+1, 1000)
		}
		close(reading)
		return nil
	})
	if err != nil || len(got) > 3 {
		t.Errorf("%d messages, %v", len(got), err)
	}
	gone := errors.New("the client has gone")
	err = report(t.Context(), func(*imagesv1.Progress) error { return gone }, func(ctx context.Context, n *news) error {
		n.amount(1, 2)
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, gone) {
		t.Error(err)
	}
}
