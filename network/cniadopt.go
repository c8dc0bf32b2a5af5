package network

import (
	"bytes"
	"fmt"

	"github.com/containernetworking/cni/libcni"

	"github.com/coracle-project/coracle/network/cni"
)

// A pod of CNI keeps its network if its record is damaged or lost: libcni's cache has the plugins'
// input and results. If the cache does not know the pod either, its Teardown calls the plugins of
// the current configuration, which delete what they know of the pod.

// known reports whether the record has the configuration that the pod was set up with.
func (l cniLease) known() bool { return len(l.Config) > 0 && string(l.Config) != "null" }

func (l cniLease) versioned() cniLease {
	l.Version = recordVersion
	return l
}

func (l cniLease) check(podID string) error {
	switch {
	case l.PodID != podID:
		return fmt.Errorf("it belongs to pod %q", l.PodID)
	case !l.Stage.known():
		return fmt.Errorf("unknown stage %q", l.Stage)
	case !l.known():
		return nil
	}
	if _, err := libcni.NetworkConfFromBytes(l.Config); err != nil {
		return fmt.Errorf("parse recorded configuration: %w", err)
	}
	return nil
}

// cached returns what libcni's cache knows about pods. It ignores damaged files of the cache.
func (n *cniNet) cached() map[string]*libcni.NetworkAttachment {
	all := map[string]*libcni.NetworkAttachment{}
	attachments, err := n.at.Load().Lib.GetCachedAttachments("")
	if err != nil {
		n.log.Warn("cannot read CNI cache", "err", err)
	}
	for _, a := range attachments {
		if a.IfName == podIf {
			all[a.ContainerID] = a
		}
	}
	return all
}

// adopt returns the lease of a pod from the cache.
func (n *cniNet) adopt(podID string, a *libcni.NetworkAttachment) cniLease {
	l := cniLease{PodID: podID, Stage: adding}
	if a == nil {
		return l // the plugins may not have finished, or more than the record is damaged
	}
	l.NetNS, l.Args, l.Caps = a.NetNS, a.CniArgs, a.CapabilityArgs
	list, err := n.listOf(a)
	if err == nil {
		l.Config, err = cni.Complete(list)
	}
	if err != nil {
		n.log.Warn("CNI cache has no usable configuration of pod", "pod", podID, "network", a.Network, "err", err)
		return l
	}
	res, err := n.at.Load().Lib.GetNetworkListCachedResult(list, l.runtime())
	if err == nil {
		l.Result, err = fromCNI(res)
	}
	if err != nil {
		n.log.Warn("CNI cache has no usable result of pod", "pod", podID, "network", a.Network, "err", err)
		return l
	}
	l.Stage = connected
	return l
}

// listOf returns the configuration that a pod was set up with. The cache has the text of the file,
// without plugins that are in files next to it. Those come from the current configuration, if it
// has the same text.
func (n *cniNet) listOf(a *libcni.NetworkAttachment) (*libcni.NetworkConfigList, error) {
	now, err := cni.Find(n.at.Load().ConfDir)
	sameName := err == nil && now != nil && now.Name == a.Network
	if sameName && bytes.Equal(now.Bytes, a.Config) {
		return now, nil
	}
	then, err := libcni.NetworkConfFromBytes(a.Config)
	if sameName && (err != nil || len(then.Plugins) == 0) {
		return now, nil
	}
	return then, err
}

// replaceDamaged replaces damaged records with leases from the cache.
func (n *cniNet) replaceDamaged(all loaded[cniLease]) {
	if len(all.damaged) == 0 {
		return
	}
	cached := n.cached()
	for podID, why := range all.damaged {
		l := n.adopt(podID, cached[podID])
		all.records[podID] = l
		n.records.replace(podID, &l, why)
	}
}

// adoptLost adds a lease for each claimed pod that is in the cache but has no record.
func (n *cniNet) adoptLost(claimed map[string]bool) {
	var lost []string
	for id := range claimed {
		if _, ok := n.lease(id); !ok {
			lost = append(lost, id)
		}
	}
	if len(lost) == 0 {
		return
	}
	cached := n.cached()
	for _, id := range lost {
		if cached[id] == nil {
			continue
		}
		n.log.Warn("network record of pod is missing; rebuilding it from the CNI cache", "pod", id)
		if err := n.save(n.adopt(id, cached[id])); err != nil {
			n.log.Warn("cannot write missing network record", "pod", id, "err", err)
		}
	}
}

// complete adds what Teardown knows about the pod to a lease whose record was lost.
func (n *cniNet) complete(l cniLease, p Pod) (cniLease, error) {
	if l.known() {
		return l, nil
	}
	list, err := cni.Find(n.at.Load().ConfDir)
	if err != nil || list == nil {
		return l, err
	}
	if l.Config, err = cni.Complete(list); err != nil {
		return l, err
	}
	if l.NetNS == "" {
		l.NetNS = p.NetNS
	}
	if l.Args == nil {
		l.Args = cniArgs(p)
	}
	if l.Caps == nil {
		l.Caps, err = capabilities(p, nil)
	}
	return l, err
}
