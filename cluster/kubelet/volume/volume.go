// Package volume makes the volumes of this node's pods, keeps what is in them up to date, and takes
// them away again.
//
// # Where things are
//
// Everything is below the kubelet's root directory, in upstream's layout, and that layout is the
// only record: after a restart what is mounted is found on disk.
//
//	pods/UID/volumes/kubernetes.io~empty-dir/NAME     also ~configmap, ~secret, ~downward-api, ~projected
//	pods/UID/volume-subpaths/NAME/CONTAINER/INDEX     a bind mount for each subPath
//	pods/UID/plugins/kubernetes.io~empty-dir/NAME/ready  the emptyDir is complete and may have data
//	pods/UID/volumes/kubernetes.io~local-volume/PV    also ~nfs: the mount of a PersistentVolume
//	pods/UID/plugins/PLUGIN/PV/claimed                the pod has that PersistentVolume, or is about to
//
// Host paths and images are not made here; Mounts only names them. Volumes of claims are mounted by
// Sources, one for each kind of PersistentVolume (package source).
//
// The Manager puts the parts below this directory together: those that make one kind of volume, and
// those that record which pod has a volume, which pods wait, and which volumes are looked after.
// Each of the latter has a lock of its own, and does not call the Manager with it held.
//
// # The life of a pod's volumes
//
// Mount makes what is not mounted yet and holds the config maps and secrets that the pod refers to.
// From then on a change of one of them, a changed pod (Refresh) or a token that grows old leads to
// one look at all volumes of that pod, which writes again only those whose contents differ. A new
// content appears at once and whole: files are links into a directory that is itself behind one
// link, ..data, and that link is replaced by rename. Unmount lets go of the references and removes
// all of it.
//
// Nothing polls: a pod whose volumes do not change costs a timer for its token and no goroutine.
// One thing is done to a pod's volumes at a time; calls for different pods never wait for each
// other.
//
// # What is hostile
//
// A container may put anything into a volume that it can write to: symbolic links, files of other
// types, mounts. So every path below a volume's own directory is resolved by the kernel relative to
// a descriptor of that directory (os.Root, openat2 with RESOLVE_BENEATH), and a subPath is bound
// from the descriptor that was resolved, never from its name. Removal does not follow links and
// does not cross mounts: it takes mounts away where it meets them. Contents of secrets and tokens
// are on tmpfs and are never part of an error or a log line.
//
// # How calls fail
//
// Errors are in the words of upstream's events. A volume source that is not served (iSCSI, cluster
// trust bundles) is an error that names the source and the volume. While a claim is not bound,
// Mount fails and says so; the pod is woken when the claim or its volume changes.
package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/claims"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/emptydir"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/holders"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/hostpath"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/keeping"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/local"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/nfs"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/projection"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/tokens"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/watched"
)

// Options say where volumes are made and what they need to know of the node.
type Options struct {
	// RootDir is the kubelet's directory ("/var/lib/kubelet").
	RootDir string
	// NodeName is this node's name.
	NodeName string
	// Allocatable returns what the node can give to pods: the limits of containers that have none,
	// and the bound of memory volumes. Nil means unknown.
	Allocatable func() v1.ResourceList
	// Wake is called when Mount of this pod may succeed now, because an object that was missing has
	// come or changed. Nil is allowed.
	Wake func(types.UID)
	// RecursiveReadOnly says whether the runtime handler of the pod can mount recursively
	// read-only. Nil means that none can.
	RecursiveReadOnly func(*v1.Pod) bool
	// NodeLabels returns the labels of this node, which say what volumes it reaches. Without them
	// it reaches none that is bound to certain nodes.
	NodeLabels func() map[string]string
	// Watch is the process's informers, which tell when claims and volumes have changed. Nil means
	// that pods which wait for them look again after their back-off.
	Watch informers.SharedInformerFactory
	// Provisioned is the directory of local volumes that this cluster has provisioned; "" for none.
	Provisioned string
	// Sources mount volumes of kinds that this package does not know.
	Sources []source.Source
	// Alias is a directory that pods' hostPath volumes name for RootDir ("/var/lib/kubelet"); ""
	// for none.
	Alias string
	// Log gets errors and warnings; nil discards them.
	Log *slog.Logger
}

// Manager owns all volumes on this node. It is safe for concurrent use.
type Manager struct {
	opts    Options
	dirs    layout.Dirs
	objects *watched.Objects
	tokens  *tokens.Cache
	// These make the volumes that are not mounted by sources.
	projections projection.Maker
	emptyDirs   emptydir.Maker

	sources []source.Source
	waiting *claims.Waiting
	claims  *claims.Resolver
	holders *holders.Table
	// looked, if set by a test, is called after each look that a change or a timer led to.
	looked func(types.UID)

	mu   sync.Mutex
	pods map[types.UID]*podVolumes
}

// New returns a manager that reads objects and asks for tokens as set's identity. It touches
// nothing.
func New(set *client.Set, opts Options) *Manager {
	opts.Log = cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	m := &Manager{
		opts:    opts,
		dirs:    layout.Dirs{Root: opts.RootDir},
		objects: watched.New(set.Kube),
		tokens:  tokens.New(set.Kube, opts.Log),
		sources: append([]source.Source{
			local.Volumes{Private: opts.Provisioned, Log: opts.Log}, hostpath.Volumes{}, nfs.Volumes{Places: nfs.HelperPlaces},
		}, opts.Sources...),
		pods: map[types.UID]*podVolumes{},
	}
	if opts.Allocatable == nil {
		opts.Allocatable = func() v1.ResourceList { return nil }
	}
	m.projections = projection.Maker{Dirs: m.dirs, Tokens: m.tokens, Allocatable: opts.Allocatable}
	m.emptyDirs = emptydir.Maker{Dirs: m.dirs, Allocatable: opts.Allocatable}
	m.waiting = claims.NewWaiting(opts.Log, m.Wake, m.keepSoon)
	m.claims = &claims.Resolver{Kube: set.Kube, Waiting: m.waiting, NodeName: opts.NodeName, NodeLabels: opts.NodeLabels}
	m.holders = holders.New(opts.RootDir, opts.Log)
	if opts.Watch != nil {
		m.waiting.Watch(opts.Watch)
	}
	return m
}

// podVolumes is what is known of one pod's volumes beyond what is on disk.
type podVolumes struct {
	uid types.UID
	// turn holds one token: who takes it works on the volumes and guards the fields below.
	turn chan struct{}
	pod  *v1.Pod
	// held are the objects that the pod's volumes are made of.
	held *projection.Held
	// kept are the volumes that Keepers look after. It has a lock of its own.
	kept *keeping.Set
	// failures counts looks in a row that failed, for the back-off.
	failures int
	// woken has a value when what has failed may succeed now.
	woken chan struct{}

	// standing says that all volumes were made once, so changes are ours to follow.
	standing atomic.Bool

	// mu guards what follows.
	mu    sync.Mutex
	timer *time.Timer
	// pending says that a look is about to begin, so that another change needs none of its own.
	pending bool
	// gone says that Unmount has forgotten this entry.
	gone bool
	// placed are the volumes that Sources have mounted, by their names in the pod.
	placed map[string]placed
}

// of returns the pod's entry, made if create is set, else nil if there is none.
func (m *Manager) of(uid types.UID, create bool) *podVolumes {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[uid]
	if p == nil && create {
		p = &podVolumes{uid: uid, turn: make(chan struct{}, 1), woken: make(chan struct{}, 1), kept: keeping.NewSet(m.opts.Log)}
		p.held = projection.Hold(m.objects, func() { m.changed(p) })
		m.pods[uid] = p
	}
	return p
}

// enter returns the pod's entry, made if there is none, when it is the caller's turn with its
// volumes.
func (m *Manager) enter(ctx context.Context, uid types.UID) (*podVolumes, error) {
	for {
		p := m.of(uid, true)
		if err := p.enter(ctx); err != nil {
			return nil, err
		}
		p.mu.Lock()
		gone := p.gone
		p.mu.Unlock()
		if !gone {
			return p, nil
		}
		p.leave() // Unmount was faster: a new entry takes its place
	}
}

func (p *podVolumes) enter(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *podVolumes) leave() { <-p.turn }

// Mount makes every volume of the pod that is not mounted yet, and keeps all of them up to date
// until Unmount. It is idempotent. Its error joins one for each volume that could not be made.
func (m *Manager) Mount(ctx context.Context, pod *v1.Pod) error {
	if err := layout.CheckUID(pod.UID); err != nil {
		return err
	}
	p, err := m.enter(ctx, pod.UID)
	if err != nil {
		return err
	}
	defer p.leave()
	p.pod = pod
	if err := m.makeAll(ctx, p, func(*v1.Volume) bool { return true }); err != nil {
		return err
	}
	p.standing.Store(true)
	p.failures = 0
	m.sleep(p)
	return nil
}

// Refresh follows a changed pod object: its labels and annotations may be in its volumes.
func (m *Manager) Refresh(ctx context.Context, pod *v1.Pod) error {
	p := m.of(pod.UID, false)
	if p == nil {
		return nil // Mount will see this pod or a newer one
	}
	if err := p.enter(ctx); err != nil {
		return err
	}
	defer p.leave()
	if !p.standing.Load() {
		return nil
	}
	p.pod = pod
	return m.follow(ctx, p)
}

// follow brings what follows the API up to date, and sets the timer for the next time.
func (m *Manager) follow(ctx context.Context, p *podVolumes) error {
	err := m.makeAll(ctx, p, projection.Is)
	if err != nil {
		p.failures++
	} else {
		p.failures = 0
	}
	m.sleep(p)
	return err
}

// Unmount takes all of the pod's volumes away; none of its containers may run any more. It works
// from what is on disk, so it may be called for pods that this process never mounted. It is
// idempotent.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	if err := layout.CheckUID(uid); err != nil {
		return err
	}
	p, err := m.enter(ctx, uid)
	if err != nil {
		return err
	}
	defer p.leave()
	m.Stopped(uid)
	p.standing.Store(false)
	p.mu.Lock()
	p.gone = true
	p.placed = nil
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	p.held.Release()
	m.tokens.Forget(uid)
	m.waiting.Forget(uid)
	if err = p.kept.Stop(ctx); err == nil {
		err = m.dirs.RemoveSubPaths(ctx, uid)
	}
	if err == nil {
		err = m.unmountPersistent(ctx, uid)
	}
	if err == nil {
		err = m.dirs.RemoveAll(ctx, uid)
	}
	if err != nil {
		p.mu.Lock()
		p.gone = false // the next Mount or Unmount finds what is left
		p.mu.Unlock()
		return err
	}
	m.released(uid)
	m.mu.Lock()
	if m.pods[uid] == p {
		delete(m.pods, uid)
	}
	m.mu.Unlock()
	return nil
}

// OnDisk returns the UIDs of the pods that have a directory, for the clean-up after pods that went
// away while the kubelet did not run.
func (m *Manager) OnDisk() ([]types.UID, error) { return m.dirs.OnDisk() }

// Wake is told that what has failed in Mount of this pod may succeed now.
func (m *Manager) Wake(uid types.UID) {
	if p := m.of(uid, false); p != nil {
		select {
		case p.woken <- struct{}{}:
		default:
		}
	}
	if m.opts.Wake != nil {
		m.opts.Wake(uid)
	}
}

// keepSoon has the volumes of a pod kept soon, of which something has changed.
func (m *Manager) keepSoon(uid types.UID) {
	if p := m.of(uid, false); p != nil {
		p.kept.Soon()
	}
}

// makeAll makes or brings up to date each volume that a container of the pod uses, among those
// wanted.
func (m *Manager) makeAll(ctx context.Context, p *podVolumes, wanted func(*v1.Volume) bool) error {
	if err := m.dirs.MakePod(p.uid); err != nil {
		return err
	}
	select {
	case <-p.woken: // before the first try
	default:
	}
	used := usedVolumes(p.pod)
	errs := make([]error, len(p.pod.Spec.Volumes))
	var own []int
	sourced := map[string][]int{} // by claim: one volume is mounted once at a time
	for i := range p.pod.Spec.Volumes {
		vol := &p.pod.Spec.Volumes[i]
		switch {
		case !used.Has(vol.Name) || !wanted(vol):
		case isPersistent(vol):
			key := "claim/" + claims.NameOf(p.pod, vol)
			if key == "claim/" {
				key = "volume/" + vol.Name
			}
			sourced[key] = append(sourced[key], i)
		default:
			own = append(own, i)
		}
	}
	tryAll(p.woken, own, sourced, func(i int) error {
		vol := &p.pod.Spec.Volumes[i]
		if errs[i] = m.make(ctx, p, vol); errs[i] != nil {
			errs[i] = fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", vol.Name, errs[i])
		}
		return errs[i]
	})
	return errors.Join(errs...)
}

// changed is told that an object of the pod's volumes is not what it was.
func (m *Manager) changed(p *podVolumes) {
	if p.standing.Load() {
		m.lookAfter(p, 0)
	} else {
		m.Wake(p.uid)
	}
}

// lookAfter has look called after d, unless a look is about to begin anyway.
func (m *Manager) lookAfter(p *podVolumes, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone || p.pending {
		return
	}
	p.pending = d <= 0
	if p.timer == nil {
		p.timer = time.AfterFunc(d, func() { m.look(p) })
	} else {
		p.timer.Reset(d)
	}
}

const (
	// lookTimeout bounds one look at a pod's volumes.
	lookTimeout = 2 * time.Minute
	// Looks that failed are repeated after keeping.Backoff, but after at most this while a token is
	// overdue: its pod may be unable to work until the token is replaced.
	tokenBackoff = 5 * time.Second
)

// look brings the volumes of a pod up to date after a change or in time before a token expires.
func (m *Manager) look(p *podVolumes) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	err := p.enter(ctx)
	p.mu.Lock()
	p.pending = false // from here on a change asks for another look
	p.mu.Unlock()
	if err != nil {
		m.lookAfter(p, keeping.Backoff(1)) // another has worked on the volumes for minutes
		return
	}
	defer p.leave()
	if !p.standing.Load() {
		return
	}
	if err := m.follow(ctx, p); err != nil {
		m.opts.Log.Warn("volumes not up to date", "pod", p.pod.Namespace+"/"+p.pod.Name, "err", err, "tries", p.failures)
	}
	if m.looked != nil {
		m.looked(p.uid)
	}
}

// sleep sets the timer for the next look: when a token wants to be renewed, or a failure to be
// tried again.
func (m *Manager) sleep(p *podVolumes) {
	var next time.Duration
	if p.failures > 0 {
		next = keeping.Backoff(p.failures)
	}
	if renew := m.tokens.Next(p.uid); !renew.IsZero() {
		switch left := time.Until(renew); {
		case left <= 0 && p.failures > 0:
			next = min(next, tokenBackoff)
		case next == 0 || left < next:
			next = max(left, time.Second)
		}
	}
	if next > 0 {
		m.lookAfter(p, next)
	}
}
