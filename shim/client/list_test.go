package client

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/coracle-project/coracle/shim/api"
)

// listing is a shim that has containers.
type listing struct {
	api.ShimClient
	containers []*api.ListResponse_Container
}

func (s listing) List(context.Context, *api.ListRequest) (*api.ListResponse, error) {
	return &api.ListResponse{Containers: s.containers}, nil
}

// A pod's own shim that cannot read of which pod a container is has none of another.
func TestContainerOfUnknownPod(t *testing.T) {
	c := &Client{cfg: Config{Log: slog.New(slog.DiscardHandler), limits: defaultLimits()}, links: map[string]*link{}}
	add := func(name string) {
		l := newLink(name, &c.cfg)
		l.attention.timer = time.AfterFunc(time.Hour, func() {})
		t.Cleanup(func() { l.attention.timer.Stop() })
		close(l.first)
		l.set(&conn{shim: listing{containers: []*api.ListResponse_Container{
			{Id: "known", PodId: "a"}, {Id: "unread", Unmanaged: "damaged"},
		}}, lost: make(chan struct{})}, nil)
		c.links[name] = l
	}
	ask := func() (map[string][]string, []Unmanaged) {
		t.Helper()
		pods, err := c.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		unmanaged, err := c.Unmanaged(t.Context())
		if err != nil || len(unmanaged) != 1 {
			t.Fatalf("unmanaged: %+v, %v", unmanaged, err)
		}
		return pods, unmanaged
	}
	add("a")
	if pods, unmanaged := ask(); len(pods) != 1 || !slices.Equal(pods["a"], []string{"known", "unread"}) || unmanaged[0].PodID != "a" {
		t.Errorf("pod's shim: %v, %+v", pods, unmanaged)
	}
	if err := c.Delete(t.Context(), "", "unread"); err == nil {
		t.Error("a container of an unknown pod counts as deleted")
	}
	delete(c.links, "a")
	add(nodeShim)
	if pods, unmanaged := ask(); len(pods) != 2 || !slices.Equal(pods[""], []string{"unread"}) || unmanaged[0].PodID != "" {
		t.Errorf("node's shim: %v, %+v", pods, unmanaged)
	}
}
