// Package localpath provisions volumes that are directories of this node: one per claim, below one
// root directory.
//
// # A volume's life
//
//	volumes/pvc-UID    the volume of the claim with that UID; empty until a pod has it
//	deleting/pvc-UID…  one that is being deleted
//
// A claim's volume is made when the binder asks this provisioner for it, on the node that the
// scheduler has chosen (WaitForFirstConsumer). It is deleted when its PersistentVolume is released
// and says so (reclaim policy Delete).
//
// # What a crash leaves
//
// The key of all work is the volume's name, which follows from the claim's UID. So a claim, its
// PersistentVolume and its directory are looked at together, one at a time, and each step can be
// done again:
//
//   - The directory is made and synced before the PersistentVolume. One without either claim or
//     PersistentVolume is removed if it is empty, which it is unless a pod had it: rmdir(2) decides,
//     and no record that could be wrong.
//   - A deletion begins with a rename into deleting/. What is there is deleted at the next start.
//   - The PersistentVolume goes last. Its finalizer keeps it until the data is gone.
//
// A directory with data and without a PersistentVolume, as after the restore of an old snapshot,
// stays and is logged.
package localpath

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

// Provisioner is the name by which StorageClasses ask for these volumes.
const Provisioner = "coracle.dev/local-path"

// prefix is how the names of volumes start, as those of all provisioners. A claim's UID follows.
const prefix = "pvc-"

// workers is how many volumes are worked on at a time. A large one that is deleted must not hold up
// others.
const workers = 4

// Options say where volumes are.
type Options struct {
	// Root is the directory of all volumes on this node.
	Root string
	// NodeName is this node's name.
	NodeName string
	// OnlySelected leaves claims alone for which no node was selected: other nodes have
	// provisioners, too.
	OnlySelected bool
	// Users returns the pods on this node that still have a volume; nil for none ever.
	Users func(volume string) ([]types.UID, error)
}

type controller struct {
	Options
	dirs    dirs
	set     *client.Set
	claims  cache.Indexer
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
	nodes   corelisters.NodeLister
	events  record.EventRecorder
	frame   *frame.Controller
	begin   func()
}

// byVolume is the index of claims by the names of their volumes.
const byVolume = "coracle/localPathVolume"

// New returns the provisioner; its keys are names of volumes.
func New(set *client.Set, o Options) *frame.Controller {
	return build(set, o, newProjects(set.Logger()))
}

func build(set *client.Set, o Options, projects *projects) *frame.Controller {
	core := set.Informers.Core().V1()
	claims := core.PersistentVolumeClaims().Informer()
	if err := claims.AddIndexers(cache.Indexers{byVolume: func(obj any) ([]string, error) { return claimKey(obj), nil }}); err != nil {
		panic(err) // two of these in one process
	}
	c := &controller{
		Options: o, dirs: dirs{root: o.Root, projects: projects}, set: set, claims: claims.GetIndexer(),
		volumes: core.PersistentVolumes().Lister(), nodes: core.Nodes().Lister(),
		classes: set.Informers.Storage().V1().StorageClasses().Lister(),
	}
	core.Nodes().Informer()
	set.Informers.Storage().V1().StorageClasses().Informer()
	f := frame.New("local-path", workers, set.Logger(), c.sync)
	c.frame, c.begin = f, sync.OnceFunc(c.recover)
	var flush func()
	c.events, flush = set.Recorder(Provisioner, o.NodeName)
	f.Watch(claims, claimKey)
	f.Watch(core.PersistentVolumes().Informer(), volumeKey)
	f.Also(func(ctx context.Context) {
		defer flush()
		c.begin()
		if err := c.dirs.clear(ctx); err != nil {
			c.frame.Log.Warn("deleted volumes are left on disk", "root", c.Root, "err", err)
		}
		<-ctx.Done()
	})
	return f
}

// claimKey is the name of the volume that a claim has or wants of this provisioner.
func claimKey(obj any) []string {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Annotations[storagehelpers.AnnStorageProvisioner] != Provisioner {
		return nil
	}
	return []string{nameOf(claim)}
}

func nameOf(claim *corev1.PersistentVolumeClaim) string { return prefix + string(claim.UID) }

// volumeKey is the name of a volume of this provisioner.
func volumeKey(obj any) []string {
	pv, ok := obj.(*corev1.PersistentVolume)
	if !ok || pv.Annotations[storagehelpers.AnnDynamicallyProvisioned] != Provisioner {
		return nil
	}
	return []string{pv.Name}
}

// recover has all that an earlier process has left looked at. It comes before all else, once: what
// a make of this process has begun looks like one that was cut off.
func (c *controller) recover() {
	names, err := c.dirs.list()
	if err != nil {
		c.frame.Log.Warn("directories of volumes are not looked at", "root", c.Root, "err", err)
	}
	for _, name := range names {
		c.frame.Add(name)
	}
}

// sync brings one volume to where its claim and its PersistentVolume want it.
func (c *controller) sync(ctx context.Context, name string) error {
	c.begin()
	pv, err := c.volumes.Get(name)
	if err == nil {
		return c.reclaim(ctx, pv)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	found, err := c.claims.ByIndex(byVolume, name)
	if err != nil {
		return err
	}
	for _, obj := range found {
		claim := obj.(*corev1.PersistentVolumeClaim)
		if claim.DeletionTimestamp == nil && claim.Spec.VolumeName == "" {
			return c.provision(ctx, claim)
		}
	}
	return c.discard(ctx, name)
}

// discard removes the directory of a volume that neither a claim nor a PersistentVolume asks for,
// if no pod ever had it.
func (c *controller) discard(ctx context.Context, name string) error {
	if !strings.HasPrefix(name, prefix) {
		return nil
	}
	_, err := c.set.Kube.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{}) // the cache may not have it yet
	if !apierrors.IsNotFound(err) {
		return err
	}
	err = c.dirs.discard(name)
	if errors.Is(err, errData) {
		c.frame.Log.Warn("a directory has data of a volume that the cluster does not know: it stays until someone removes it", "dir", c.dirs.path(name))
		return nil
	}
	return err
}

// hostname is the label of this node that volumes are bound to.
func (c *controller) hostname() (string, error) {
	node, err := c.nodes.Get(c.NodeName)
	if err != nil {
		return "", err
	}
	if name := node.Labels[corev1.LabelHostname]; name != "" {
		return name, nil
	}
	return "", fmt.Errorf("node %q has no label %s", c.NodeName, corev1.LabelHostname)
}
