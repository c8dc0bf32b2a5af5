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
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	recording "k8s.io/client-go/tools/record"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

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

// Node is the node's part. It is safe for concurrent use: each of its parts that has state has
// a lock of its own.
type Node struct {
	opts Options
	// noRoot is why RootDir is not known as an absolute path.
	noRoot   error
	work     *background.Group
	registry *registration.Registry
	places   places
	mounts   *mountTable
	// tokens are the pods' tokens for drivers.
	tokens      *tokens.Cache
	index       *index
	waiting     *waiting
	requests    *requests
	attachments *attachments
	stages      *stages
	usages      *usages
	growths     *growths
	turns       turns
}

var (
	_ source.Source   = (*Node)(nil)
	_ source.Keeper   = (*Node)(nil)
	_ source.Measurer = (*Node)(nil)
)

// New returns the node's part. It touches nothing.
func New(o Options) *Node {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	n := &Node{opts: o, work: background.New(), tokens: tokens.New(o.Kube, o.Log), index: &index{}}
	n.opts.RootDir, n.noRoot = filepath.Abs(o.RootDir)
	n.registry = registration.New(registration.Options{
		RootDir: n.opts.RootDir, NodeName: o.NodeName, Kube: o.Kube, Log: o.Log, Work: n.work,
		Registered: func(driver string) {
			n.waiting.wake(driverKey(driver))
			n.stages.sweep(driver)
		},
	})
	report := func() {
		if o.Report != nil {
			o.Report()
		}
	}
	n.places, n.mounts = places{rootDir: n.opts.RootDir}, &mountTable{rootDir: n.opts.RootDir}
	n.waiting = &waiting{log: o.Log, wakePod: o.Wake, users: map[string]map[user]struct{}{}}
	n.requests = &requests{kube: o.Kube, tokens: n.tokens}
	n.attachments = &attachments{
		nodeName: o.NodeName, kube: o.Kube, registry: n.registry, waiting: n.waiting, report: report,
		reported: map[v1.UniqueVolumeName]struct{}{}, again: make(chan struct{}),
	}
	n.stages = &stages{
		nodeName: o.NodeName, log: o.Log, recorder: o.Recorder, places: n.places, mounts: n.mounts, work: n.work, registry: n.registry,
		waiting: n.waiting, requests: n.requests, report: report, volumes: map[string]*staged{},
	}
	n.usages = &usages{
		log: o.Log, recorder: o.Recorder, places: n.places, work: n.work, registry: n.registry,
		patience: usagePatience, known: map[string]*usage{}, late: map[string]int{},
	}
	n.growths = &growths{
		nodeName: o.NodeName, kube: o.Kube, recorder: o.Recorder, places: n.places, index: n.index, usages: n.usages,
		requests: n.requests, stages: n.stages,
	}
	return n
}

// Load reads what earlier kubelets have left. VolumesInUse is right from then on. Call it once,
// before the node is registered and before any pod is mounted.
func (n *Node) Load() error {
	if n.noRoot != nil {
		return n.noRoot
	}
	var err error
	if n.mounts.real, err = filepath.EvalSymlinks(n.opts.RootDir); err != nil {
		return err
	}
	if n.opts.BootID == "" {
		return errors.New("the machine's boot is not known: /proc/sys/kernel/random/boot_id cannot be read")
	}
	return n.stages.load()
}

// Run serves until ctx ends. Then no call is under way any more.
func (n *Node) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, n.work.Cancel)
	defer stop()
	n.stages.tellDamaged()
	n.stages.sweep("")
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
	n.waiting.add(driverKey(name), user) // first: a driver that comes after the look wakes the pod
	d, err := n.registry.Driver(name)
	if err == nil {
		n.waiting.remove(driverKey(name), user)
	}
	return d, err
}

// NodeChanged is told of the node's object as the API has it now.
func (n *Node) NodeChanged(node *v1.Node) {
	n.registry.NodeIs(node.UID)
	for _, a := range node.Status.VolumesAttached {
		n.waiting.wake(attachKey(a.Name))
	}
}

// Reported is told what the node's status has been written with, or what the API is known to have.
func (n *Node) Reported(inUse []v1.UniqueVolumeName) { n.attachments.setReported(inUse) }

// VolumesInUse lists what must not be detached from this node: as upstream has it, the volumes that
// are attached, or are to be. known is what the API has of that, or had when this process wrote it
// last.
func (n *Node) VolumesInUse(known []v1.UniqueVolumeName) []v1.UniqueVolumeName {
	return n.stages.inUse(known)
}

// Usage implements source.Measurer. It returns what is known, and has the driver asked if that is
// old. Only who asks first waits, and not for long.
func (n *Node) Usage(ctx context.Context, v *source.Spec) (statsapi.VolumeStats, bool) {
	return n.usages.of(ctx, v)
}
