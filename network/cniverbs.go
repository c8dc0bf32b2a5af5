package network

import (
	"context"
	"fmt"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// The verbs that CNI 1.1 added. With a configuration of an older version libcni does not
// execute the plugins for them.

// collectLimit bounds the plugins' garbage collection, which a start waits for.
const collectLimit = 30 * time.Second

// collect tells the plugins which attachments there are, so that they free what belongs to
// any other: addresses of pods whose record or DEL was lost with a crash or a reboot.
func (n *cniNet) collect(ctx context.Context) error {
	list, err := findCNIConfig(n.at.Load().confDir)
	if err != nil || list == nil {
		return nil // pods are refused with the same error
	}
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, l := range n.list() {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: l.PodID, IfName: podIf})
	}
	ctx, cancel := context.WithTimeout(ctx, collectLimit)
	defer cancel()
	if err := n.at.Load().cni.GCNetworkList(ctx, list, args); err != nil {
		return fmt.Errorf("garbage collection of CNI network %q: %w", list.Name, err)
	}
	return nil
}
