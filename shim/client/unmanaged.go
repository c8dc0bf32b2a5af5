package client

import (
	"context"
	"fmt"

	"github.com/coracle-project/coracle/shim/api"
)

// Unmanaged is a container that a shim could not adopt. It may be running. List includes it. It can
// be killed and, once it has ended, deleted; no other call works. The shim may adopt it later.
type Unmanaged struct {
	PodID  string // empty if unknown
	ID     string
	Reason string
}

// Unmanaged lists the unmanaged containers.
func (c *Client) Unmanaged(ctx context.Context) ([]Unmanaged, error) {
	var all []Unmanaged
	for _, l := range c.all() {
		err := l.again(ctx, func(ctx context.Context, k *conn) error {
			res, err := k.shim.List(ctx, &api.ListRequest{})
			for _, one := range res.GetContainers() {
				if one.Unmanaged != "" {
					all = append(all, Unmanaged{PodID: l.podOf(one), ID: one.Id, Reason: one.Unmanaged})
				}
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list unmanaged containers: %w", err)
		}
	}
	return all, nil
}
