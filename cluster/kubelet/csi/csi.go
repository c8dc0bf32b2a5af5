// Package csi is the node's part of the Container Storage Interface. It has drivers stage, publish
// and take away the volumes of this node's pods. Package registration finds the drivers and
// publishes what they say of this node; package client makes the calls. It is a source.Source.
//
// # Words
//
// A driver is a program, nearly always a pod, that serves the CSI Node service on a socket. A
// registrar, a container next to it, makes a second socket in plugins_registry that says where the
// first one is. To stage a volume makes it usable on the node, once; to publish it puts it where
// one pod sees it. A volume is in use from before it is staged until after it is unstaged: the
// node's status says so, and until then no controller detaches it.
//
// # Where things are
//
// Everything is below the kubelet's root directory, in upstream's layout, and that layout is the
// only record of what was asked of drivers:
//
//	plugins_registry/NAME.sock                                      a registrar's socket
//	plugins/kubernetes.io/csi/DRIVER/SHA256(HANDLE)/vol_data.json    a volume that is, or may be, staged at globalmount
//	plugins/kubernetes.io/csi/volumeDevices/PV/data/vol_data.json    the same of a block volume, at volumeDevices/staging/PV
//	pods/UID/volumes/kubernetes.io~csi/NAME/vol_data.json            a volume that is, or may be, published at mount
//	pods/UID/plugins/kubernetes.io~csi/NAME/vol_data.json            the same of a block volume, at volumeDevices/publish/PV/UID
//	pods/UID/plugins/kubernetes.io~csi/NAME/published                the pod may use it: everything has succeeded
//
// A record is written before the call that it is about, and removed when the opposite call has
// succeeded and the list of mounts shows nothing there. Nothing is ever removed below a mount:
// directories that a driver mounts on go by rmdir.
//
// # The life of a volume
//
// Mount waits, by failing, for the driver and for the attachment; the pod is woken when they come.
// Then it stages the volume if no pod on this node has it yet, publishes it, gives it to the pod's
// group and grows it if the claim waits for that. Unmount has the driver unpublish it. If that
// fails, or the driver is not there, the record stays and the pod is not gone. When the last pod
// has let go of a volume, it is unstaged in the background, which is tried until it succeeds. A
// kubelet that starts reads the records and goes on where the last one ended.
//
// # What is hostile
//
// A driver may hang, die, lie and answer with anything. Every call has a deadline, answers are
// bounded, and a call that hangs holds up only the volume that it is for. Names become directory
// names only after a check.
package csi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	recording "k8s.io/client-go/tools/record"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/background"
	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
	"github.com/coracle-project/coracle/cluster/kubelet/csi/registration"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/tokens"
)

// pluginName is the name in directories.
const pluginName = "kubernetes.io~csi"

// Options are what the node's part needs of the kubelet.
type Options struct {
	// RootDir is the kubelet's directory.
	RootDir string
	// NodeName is this node's name.
	NodeName string
	// BootID is the machine's boot: devices are gone, or others, after the next one.
	BootID   string
	Kube     kubernetes.Interface
	Recorder recording.EventRecorder
	// Wake is called when Mount or Unmount of this pod may succeed now.
	Wake func(types.UID)
	// Report has the node's status written soon: VolumesInUse returns something else.
	Report func()
	// LookEvery is how often the claim of a published volume is read again, for kubelets that do
	// not see it change; 0 for never.
	LookEvery time.Duration
	// Log gets errors and warnings; nil discards them.
	Log *slog.Logger
}

// Node is the node's part. It is safe for concurrent use.
type Node struct {
	opts Options
	// noRoot is why RootDir is not known as an absolute path.
	noRoot error
	// real is RootDir without links, as the kernel lists mounts.
	real     string
	work     *background.Group
	registry *registration.Registry
	usages   usages
	index    index
	// tokens are the pods' tokens for drivers.
	tokens *tokens.Cache

	mu      sync.Mutex
	volumes map[string]*staged // by the directory of the record
	// reported are the volumes that the API knows to be in use; again is closed when they change.
	reported map[v1.UniqueVolumeName]struct{}
	again    chan struct{}
	// waiting are the pods' volumes that wait, by what they wait for.
	waiting map[string]map[user]struct{}
	// unread are the records of stages that cannot be read.
	unread damaged
}

var (
	_ source.Source   = (*Node)(nil)
	_ source.Keeper   = (*Node)(nil)
	_ source.Measurer = (*Node)(nil)
)

// New returns the node's part. It touches nothing.
func New(o Options) *Node {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	n := &Node{
		opts: o, work: background.New(), volumes: map[string]*staged{},
		reported: map[v1.UniqueVolumeName]struct{}{}, again: make(chan struct{}), waiting: map[string]map[user]struct{}{},
		tokens: tokens.New(o.Kube, o.Log),
	}
	n.opts.RootDir, n.noRoot = filepath.Abs(o.RootDir)
	n.registry = registration.New(registration.Options{
		RootDir: n.opts.RootDir, NodeName: o.NodeName, Kube: o.Kube, Log: o.Log, Work: n.work,
		Registered: func(driver string) {
			n.wake(driverKey(driver))
			n.sweep(driver)
		},
	})
	n.usages.known, n.usages.late, n.usages.patience = map[string]*usage{}, map[string]int{}, usagePatience
	return n
}

// Load reads what earlier kubelets have left. VolumesInUse is right from then on. Call it once,
// before the node is registered and before any pod is mounted.
func (n *Node) Load() error {
	if n.noRoot != nil {
		return n.noRoot
	}
	var err error
	if n.real, err = filepath.EvalSymlinks(n.opts.RootDir); err != nil {
		return err
	}
	if n.opts.BootID == "" {
		return errors.New("the machine's boot is not known: /proc/sys/kernel/random/boot_id cannot be read")
	}
	return n.readRecords()
}

// Run serves until ctx ends. Then no call is under way any more.
func (n *Node) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, n.work.Cancel)
	defer stop()
	n.tellDamaged()
	n.sweep("")
	n.registry.Run(ctx)
	n.work.Close()
}

// Plugin implements source.Source.
func (*Node) Plugin() string { return pluginName }

// Serves implements source.Source.
func (*Node) Serves(v *source.Spec) bool {
	if v.PV != nil {
		return v.PV.Spec.CSI != nil
	}
	return v.Inline != nil && v.Inline.CSI != nil
}

// driverFor returns the driver, or has the pod woken when it registers.
func (n *Node) driverFor(name string, user user) (*client.Driver, error) {
	n.wait(driverKey(name), user) // first: a driver that comes after the look wakes the pod
	d, err := n.registry.Driver(name)
	if err == nil {
		n.waitNoMore(driverKey(name), user)
	}
	return d, err
}

func driverKey(name string) string { return "driver/" + name }

// wait has the pod woken at the next call of wake for key.
func (n *Node) wait(key string, u user) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waitLocked(key, u)
}

func (n *Node) waitLocked(key string, u user) {
	if n.waiting[key] == nil {
		n.waiting[key] = map[user]struct{}{}
	}
	n.waiting[key][u] = struct{}{}
}

// waitNoMore is told that the pod's volume does not wait for key any more.
func (n *Node) waitNoMore(key string, u user) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if delete(n.waiting[key], u); len(n.waiting[key]) == 0 {
		delete(n.waiting, key)
	}
}

// wake wakes the pods that wait for key.
func (n *Node) wake(key string) {
	n.mu.Lock()
	pods := map[types.UID]struct{}{}
	for u := range n.waiting[key] {
		pods[u.pod] = struct{}{}
	}
	delete(n.waiting, key)
	n.mu.Unlock()
	if n.opts.Wake == nil {
		return
	}
	for pod := range pods {
		n.opts.Log.Debug("csi: a pod may go on", "pod", pod, "for", key)
		n.opts.Wake(pod)
	}
}
