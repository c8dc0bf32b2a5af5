package sandbox

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/idmaps"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
)

// Run is Manager.Run of package pod.
func (ps *Pods) Run(ctx context.Context, c podconfig.Pod) (podID string, err error) {
	if err := ps.complete(&c); err != nil {
		return "", err
	}
	return ps.making.Do(ctx, c.Identity(), func(ctx context.Context) (string, error) {
		return ps.run(ctx, c, true)
	})
}

// RunNew is Run for a caller that removes the pod when a later step fails: ErrExists also for
// a pod of the same configuration, and when ctx ends nothing is left.
func (ps *Pods) RunNew(ctx context.Context, c podconfig.Pod) (podID string, err error) {
	if err := ps.complete(&c); err != nil {
		return "", err
	}
	return ps.run(ctx, c, false)
}

// complete checks a pod's configuration, and sets its handler's overhead.
func (ps *Pods) complete(c *podconfig.Pod) error {
	if err := c.Validate(ps.Handlers, ps.CgroupDriver); err != nil {
		return failure.During("run pod", c.String(), err)
	}
	if c.Overhead == nil {
		c.Overhead = ps.Handlers()[c.RuntimeHandler].Overhead
	}
	return nil
}

func (ps *Pods) run(ctx context.Context, c podconfig.Pod, mayExist bool) (id string, err error) {
	err = ps.Life.Run(ctx, runLimit, func(ctx context.Context) error {
		id, err = ps.add(ctx, c, mayExist)
		return failure.During("run pod", c.String(), err)
	})
	return id, err
}

// add makes a pod. One of the same configuration may exist, if mayExist: then its id is
// returned.
func (ps *Pods) add(ctx context.Context, c podconfig.Pod, mayExist bool) (string, error) {
	if err := ps.AwaitRecovery(ctx); err != nil {
		return "", err
	}
	ps.Starting()
	id := table.NewID()
	rec := state.PodRecord{ID: id, Phase: state.PodMaking, Config: c, CreatedAt: ps.Created.Next()}
	e := table.NewEntry(id, ps.Dirs.Pods(), ps.Reserve, rec, ps.Events.PodChanged)
	if holder, ok := ps.Pods.Add(c.Identity(), e); !ok {
		if mayExist && ps.repeated(holder, &c) {
			return holder, nil
		}
		return "", errdefs.Errorf(errdefs.ErrExists, "pod %s has this name, namespace, uid and attempt; remove it or raise the attempt", holder)
	}
	if err := e.Turn.Take(ctx); err != nil {
		return "", err // cannot happen: no one else knows the id
	}
	defer e.Turn.Give()
	err := ps.makePod(ctx, e)
	if err == nil {
		return id, nil
	}
	undo, cancel := life.Undoing(ctx)
	defer cancel()
	if uerr := ps.undoPod(undo, e); uerr != nil {
		ps.Log.Error("half-made pod not cleaned up, trying again in the background", "pod", id, "err", uerr)
		ps.Pods.Release(e)
		ps.Clean.Queue("pod", id, func(ctx context.Context) error { return ps.undoPod(ctx, e) })
	}
	return "", ps.Reserve.Explain(err)
}

func (ps *Pods) makePod(ctx context.Context, e *state.PodEntry) error {
	begin := time.Now()
	var watch state.Stopwatch
	stage := func(point fault.Point) error {
		ps.Log.Debug("pod starting", "pod", e.ID, "stage", point, "after", time.Since(begin))
		return ps.FaultAt(ctx, point)
	}
	if err := ps.Dirs.Pods().Make(e.ID); err != nil {
		return err
	}
	labels, err := ps.recordLabels(e)
	if err != nil {
		return err
	}
	if err := stage(faultRunRecorded); err != nil {
		return err
	}
	c := &e.Get().Config
	var (
		set   nspin.Set
		net   network.Result
		tasks errgroup.Group
	)
	hostname, err := c.UTSName()
	if err != nil {
		return err
	}
	recorded := watch.Step("record the intent", begin)
	tasks.Go(func() error {
		defer func() { watch.Step("write files", recorded) }()
		return ps.writePodFiles(e.ID, c, hostname)
	})
	tasks.Go(func() (err error) {
		if set, err = ps.pinNamespaces(ctx, e.ID, c, hostname); err != nil {
			return err
		}
		pinned := watch.Step("make namespaces", recorded)
		if err := stage(faultRunNamespaces); err != nil {
			return err
		}
		if c.HostNetwork() {
			return nil
		}
		if net, err = ps.Network.Setup(ctx, ps.networkPod(e.ID, c)); err != nil {
			return fmt.Errorf("network: %w", err)
		}
		watch.Step("connect network", pinned)
		return stage(faultRunNetwork)
	})
	if err := tasks.Wait(); err != nil {
		return err
	}
	connected := time.Now()
	if err := ps.finishPodFiles(e.ID, c, hostname, net, labels); err != nil {
		return err
	}
	watch.Step("write hosts and resolv.conf", connected)
	p := e.Get().Value()
	p.IPs, p.NetNS = net.IPs, set.Net
	// Hold new plugins only from here on, not while the pod is being connected: see makeContainer.
	defer ps.Notify.Hold()()
	if err := ps.Notify.Pod(ctx, plugins.PodRuns, p); err != nil {
		return err
	}
	err = e.Update(func(r *state.PodRecord) {
		r.Phase, r.IPs, r.Namespaces, r.Steps = state.PodReady, net.IPs, set, watch.All(nil)
	})
	if err != nil {
		return err
	}
	// Only now does the record say that the pod is whole; an error at this point
	// leaves it so.
	if err := stage(faultRunReady); err != nil {
		ps.Log.Warn("fault after the pod was ready", "pod", e.ID, "err", err)
	}
	return nil
}

// recordLabels records the pod's SELinux labels, before anything has them.
func (ps *Pods) recordLabels(e *state.PodEntry) (mac.Labels, error) {
	labels, err := ps.SELinux.Pod(&e.Get().Config)
	if err != nil {
		return mac.Labels{}, err
	}
	if err := e.Update(func(r *state.PodRecord) { r.Labels = labels }); err != nil {
		ps.SELinux.Release(labels)
		return mac.Labels{}, err
	}
	return labels, nil
}

// finishPodFiles writes the files that name the pod's addresses, and makes all its files the pod's.
func (ps *Pods) finishPodFiles(id string, c *podconfig.Pod, hostname string, net network.Result, labels mac.Labels) error {
	if err := ps.writeNetworkFiles(id, c, hostname, net); err != nil {
		return err
	}
	if err := ps.givePodFiles(id, c); err != nil {
		return err
	}
	return ps.labelPodFiles(id, c, labels)
}

// pinNamespaces makes those namespaces that the pod does not share with the host.
func (ps *Pods) pinNamespaces(ctx context.Context, id string, c *podconfig.Pod, hostname string) (nspin.Set, error) {
	spec := nspin.Spec{Net: !c.HostNetwork(), IPC: !c.HostIPC(), UTS: !c.HostNetwork(), Sysctls: map[string]string{}}
	if users := c.Namespaces.Users; c.UserNamespace() {
		spec.Users = nspin.Users{UIDs: idmaps.Sys(users.UIDs), GIDs: idmaps.Sys(users.GIDs)}
	}
	if !spec.Net && !spec.IPC && !spec.UTS {
		return nspin.Set{}, nil
	}
	if spec.UTS {
		spec.Hostname = hostname
	}
	if spec.Net {
		// As peers do: binding low ports and ping need no capability in a pod.
		spec.Sysctls["net.ipv4.ip_unprivileged_port_start"] = "0"
		spec.Sysctls["net.ipv4.ping_group_range"] = "0 2147483647"
	}
	maps.Copy(spec.Sysctls, c.DottedSysctls())
	set, err := ps.Namespaces.Create(ctx, ps.Dirs.NamespacesOf(id), spec)
	if err != nil {
		return nspin.Set{}, fmt.Errorf("namespaces: %w", err)
	}
	return set, nil
}

// networkPod is what network/ needs to know. It is made from the id and the config
// alone, so that a half-made pod can be torn down too.
func (ps *Pods) networkPod(id string, c *podconfig.Pod) network.Pod {
	p := network.Pod{
		ID: id, Name: c.Name, Namespace: c.Namespace, UID: c.UID,
		NetNS:        filepath.Join(ps.Dirs.NamespacesOf(id), "net"),
		CgroupParent: c.CgroupParent, Annotations: c.Annotations,
		DNS: network.DNS(c.DNS), Sysctls: c.DottedSysctls(),
	}
	for _, port := range c.Ports {
		if port.HostPort == 0 {
			continue
		}
		ip, _ := netip.ParseAddr(port.HostIP) // validated; empty means any
		p.Ports = append(p.Ports, network.PortMapping{
			Protocol: port.ProtocolName(), HostIP: ip,
			ContainerPort: uint16(port.ContainerPort), HostPort: uint16(port.HostPort),
		})
	}
	return p
}

// undoPod takes back whatever makePod did before it failed or the daemon died.
func (ps *Pods) undoPod(ctx context.Context, e *state.PodEntry) error {
	if err := ps.dropPodParts(ctx, e); err != nil {
		return err
	}
	if err := e.Erase(); err != nil {
		return err
	}
	ps.Pods.Remove(e)
	ps.SELinux.Release(e.Get().Labels)
	return nil
}

func (ps *Pods) repeated(holder string, c *podconfig.Pod) bool {
	e := ps.Pods.Exact(holder)
	if e == nil {
		return false
	}
	r := e.Get()
	return r.Phase == state.PodReady && podconfig.Same(&r.Config, c)
}
