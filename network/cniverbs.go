package network

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/coracle-project/coracle/network/cni"
)

// The verbs that CNI 1.1 added. With a configuration of an older version libcni does not
// execute the plugins for them.

// collect tells the plugins which attachments there are, so that they free what belongs to
// any other: addresses of pods whose record or DEL was lost in a crash or a reboot. Nothing of a
// claimed pod is freed, even if its record was lost.
func (n *cniNet) collect(ctx context.Context, claimed map[string]bool) error {
	list, err := cni.Find(n.at.Load().ConfDir)
	if err != nil || list == nil {
		return nil // pods are refused with the same error
	}
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	valid := maps.Clone(claimed)
	for _, l := range n.list() {
		valid[l.PodID] = true
	}
	for _, id := range slices.Sorted(maps.Keys(valid)) {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: podIf})
	}
	ctx, cancel := context.WithTimeout(ctx, n.wait)
	defer cancel()
	if err := n.at.Load().Lib.GCNetworkList(ctx, list, args); err != nil {
		return fmt.Errorf("garbage collection of CNI network %q: %w", list.Name, err)
	}
	return nil
}
