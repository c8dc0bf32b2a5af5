package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/fsgroup"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// Mount implements source.Source. When ctx ends it returns, but the driver goes on with its call,
// and Unmount waits for that.
func (n *Node) Mount(ctx context.Context, v *source.Spec) (string, error) {
	var path string
	err := n.inTurn(ctx, v.Mounted, func(life context.Context) (err error) {
		path, err = n.mount(ctx, life, v)
		return err
	})
	if err != nil {
		return "", err // f may go on
	}
	return path, nil
}

func (n *Node) mount(ctx, life context.Context, v *source.Spec) (string, error) {
	r, err := n.requests.make(ctx, v)
	if err != nil {
		return "", err
	}
	target := n.places.target(r.user, v.Mounted, v.Block)
	if done, err := n.published(v, target); done || err != nil {
		n.index.update(v.State, func(p *publication) { p.republish, p.found = r.republished(), true })
		return target, err
	}
	d, err := n.driverFor(r.driverName, r.user)
	if err != nil {
		return "", err
	}
	n.registry.Follow(d.Name, r.object)
	s, err := n.take(ctx, r)
	if err != nil {
		return "", err
	}
	session, err := d.Open(ctx)
	if err != nil {
		return "", err
	}
	defer session.Close()
	session.Outlive(life)
	if s != nil {
		if err := n.stages.stage(ctx, session, s, r); err != nil {
			return "", err
		}
	}
	if err := n.prepare(r, target); err != nil {
		return "", err
	}
	if err := n.publish(ctx, session, s, r, target); err != nil {
		return "", err
	}
	if err := n.finish(ctx, session, r, target); err != nil {
		return "", err
	}
	n.index.update(v.State, func(p *publication) { p.republish = r.republished() })
	if err := n.growths.grow(ctx, session, r, atMount); err != nil { // the pod can use what there is
		n.opts.Log.Warn("csi: volume not grown", "volume", v.Name, "err", err)
		n.index.update(v.State, func(p *publication) { p.found = true }) // have Keep grow it
	}
	return target, nil
}

// take makes a persistent volume one that is in use, and requires that it is attached if it has to
// be. It returns nil for other volumes.
func (n *Node) take(ctx context.Context, r *request) (s *staged, err error) {
	if !r.persistent() {
		return nil, nil
	}
	if s, err = n.stages.use(r); err == nil && r.attachable() {
		r.publishContext, err = n.attachments.attached(ctx, s, r)
	}
	return s, err
}

// published says whether an earlier Mount, perhaps of another process, has succeeded, and what it
// made is still there. The driver is not asked.
func (n *Node) published(v *source.Spec, target string) (bool, error) {
	boot, err := layout.ReadFile(filepath.Join(v.State, publishedFile), 64)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !v.Block {
		return n.mounts.has(target)
	}
	if strings.TrimSpace(string(boot)) == n.opts.BootID {
		return isDevice(target), nil
	}
	// The machine has been started again: the device is another's, or has no volume.
	return false, errors.Join(n.mounts.removePlace(target), os.Remove(filepath.Join(v.State, publishedFile)))
}

// prepare writes the record, and makes the directory above the one that the driver makes.
func (n *Node) prepare(r *request, target string) error {
	rec := record{Spec: r.spec.Name, Handle: r.handle, Driver: r.driverName, Node: n.opts.NodeName, Mode: r.mode, SELinux: r.label}
	if r.persistent() {
		rec.Attachment = attachmentName(r.handle, r.driverName, n.opts.NodeName)
	}
	if err := writeRecord(recordDir(r.spec.Mounted, r.spec.Block), rec); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Dir(target), 0o750)
}

// publish has the driver publish the volume for the pod, the first time or again.
func (n *Node) publish(ctx context.Context, session *client.Session, s *staged, r *request, target string) error {
	attributes, secrets, err := n.requests.volumeContext(ctx, r)
	if err != nil {
		return err
	}
	request := &csipb.NodePublishVolumeRequest{
		VolumeId: r.handle, PublishContext: r.publishContext, TargetPath: session.Seen(target),
		VolumeCapability: r.capability(session), Readonly: r.readOnly, Secrets: secrets, VolumeContext: attributes,
	}
	if s != nil && session.Can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		request.StagingTargetPath = session.Seen(n.places.stagePath(s))
	}
	return session.Call(ctx, "NodePublishVolume", func(ctx context.Context) error {
		_, err := session.Node.NodePublishVolume(ctx, request)
		return err
	})
}

// finish checks what the driver has made, gives it to the pod's group, and records that it is
// ready.
func (n *Node) finish(ctx context.Context, session *client.Session, r *request, target string) error {
	if r.spec.Block {
		if !isDevice(target) {
			return fmt.Errorf(
				"driver %s has published volume %q, but there is no block device at %s: the driver's pod needs the mountPropagation Bidirectional",
				r.driverName, r.spec.Name, target,
			)
		}
	} else if mounted, err := n.mounts.has(target); err != nil {
		return err
	} else if !mounted {
		if info, err := os.Lstat(target); err != nil || !info.IsDir() {
			return fmt.Errorf(
				"driver %s has published volume %q, but there is no directory %s: the driver's pod needs the mountPropagation Bidirectional",
				r.driverName, r.spec.Name, target,
			)
		}
	}
	if err := n.giveGroup(ctx, session, r, target); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.spec.State, publishedFile), []byte(n.opts.BootID+"\n"), 0o640)
}

// giveGroup gives the files of a volume to the pod's group, if that is the kubelet's business.
func (n *Node) giveGroup(ctx context.Context, session *client.Session, r *request, target string) error {
	gives, err := r.givesGroup(session)
	if err != nil || !gives {
		return err
	}
	if err := fsgroup.Give(ctx, target, r.spec.Pod, n.opts.Log); err != nil {
		return fmt.Errorf("give volume %q to the pod's fsGroup: %w", r.spec.Name, err)
	}
	return nil
}

// Unmount implements source.Source. It works from the record alone.
func (n *Node) Unmount(ctx context.Context, m source.Mounted) error {
	leave, err := n.turns.take(ctx, m.State)
	if err != nil {
		return fmt.Errorf("the volume is still being mounted: %w", err)
	}
	defer leave()
	u := user{pod: podOf(m), volume: filepath.Base(m.State)}
	n.forget(m, u)
	for _, block := range []bool{false, true} {
		dir := recordDir(m, block)
		r, err := readRecord(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			if r, err = n.damaged(u, n.places.target(u, m, block), block, err); err != nil {
				return err
			}
			if r == nil {
				if err := removeRecord(dir); err != nil {
					return err
				}
				continue
			}
		}
		if err := os.Remove(filepath.Join(m.State, publishedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := n.unpublish(ctx, r, u, n.places.target(u, m, block), dir); err != nil {
			return err
		}
	}
	if mounts, err := n.mounts.at(m.Dir); err != nil {
		return err
	} else if len(mounts) > 0 {
		return fmt.Errorf("%s is mounted, but there is no record of it: unmount it by hand", mounts[0].Mountpoint)
	}
	n.stages.release(u)
	return nil
}

// damaged returns what is known of a volume whose record cannot be read. It returns nil if nothing
// is known and nothing is there: then the volume was not published, or the machine has been started
// again since.
func (n *Node) damaged(u user, target string, block bool, why error) (*record, error) {
	if r := n.stages.recordOf(u, block); r != nil {
		n.opts.Log.Warn("csi: a damaged record is replaced by that of the staged volume", "pod", u.pod, "volume", u.volume, "err", why)
		return r, nil
	}
	mounts, err := n.mounts.at(target)
	if err != nil {
		return nil, err
	}
	if len(mounts) > 0 || isDevice(target) {
		return nil, why
	}
	n.opts.Log.Warn("csi: a damaged record of a volume that is not mounted is dropped", "pod", u.pod, "volume", u.volume, "err", why)
	return nil, nil
}

// podOf is the pod whose volume it is: State is pods/UID/plugins/PLUGIN/NAME.
func podOf(m source.Mounted) types.UID {
	return types.UID(filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(m.State)))))
}

func (n *Node) unpublish(ctx context.Context, r *record, u user, target, dir string) error {
	d, err := n.driverFor(r.Driver, u)
	if err != nil {
		return err
	}
	session, err := d.Connect()
	if err != nil {
		return err
	}
	defer session.Close()
	err = session.Call(ctx, "NodeUnpublishVolume", func(ctx context.Context) error {
		_, err := session.Node.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: r.Handle, TargetPath: d.Seen(target)})
		return err
	})
	if err != nil {
		return err
	}
	if err := n.mounts.removePlace(target); err != nil {
		return err
	}
	return removeRecord(dir)
}

// forget drops what is kept of a published volume in memory.
func (n *Node) forget(m source.Mounted, u user) {
	n.usages.forget(m.State)
	n.tokens.Forget(u.pod)
	n.index.forget(m.State)
	n.waiting.forget(u)
}
