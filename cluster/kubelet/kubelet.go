// Package kubelet runs the pods of one node over CRI.
//
// It is put together from small parts: pod runs pods, status reports them, probe asks containers,
// images gets their images, volume, csi and env give them what they read, cgroups bounds them,
// eviction ends those that the node cannot keep, logrotate keeps their logs within bounds, sysctls
// says which they may set, node reports the machine, server answers the API server, and cri is the
// way to the runtime. This package routes between them: pods come from the API's watch and from
// static files, pass the node's admission and go to the pod runner; the runtime's and the probes'
// news wake it.
//
// New reads the machine, takes its port and makes no call; Run works until its context ends, and
// leaves all containers running. A kubelet that is started again finds them by their labels.
package kubelet

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/kubelet/cgroups"
	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/kubelet/csi"
	"github.com/coracle-project/coracle/cluster/kubelet/env"
	"github.com/coracle-project/coracle/cluster/kubelet/eviction"
	"github.com/coracle-project/coracle/cluster/kubelet/images"
	"github.com/coracle-project/coracle/cluster/kubelet/node"
	"github.com/coracle-project/coracle/cluster/kubelet/pod"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/criconfig"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/podlogs"
	"github.com/coracle-project/coracle/cluster/kubelet/probe"
	"github.com/coracle-project/coracle/cluster/kubelet/server"
	"github.com/coracle-project/coracle/cluster/kubelet/status"
	"github.com/coracle-project/coracle/cluster/kubelet/sysctls"
	"github.com/coracle-project/coracle/cluster/kubelet/volume"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
	objects "github.com/coracle-project/coracle/cluster/kubelet/volume/watched"
)

// Kubelet runs one node.
type Kubelet struct {
	opts     Options
	set      *client.Set
	cri      *cri.Client
	recorder record.EventRecorder
	flush    func()
	watched  watched
	reporter *node.Reporter
	volumes  *volume.Manager
	csi      *csi.Node
	env      Env
	puller   *images.Puller
	probes   *probe.Manager
	collect  *images.Collector
	sysctls  *sysctls.Allowed
	evictor  *eviction.Manager
	ranges   *podRanges
	refused  atomic.Bool // whether pods wait for a network plugin
	handlers func(class *string) (string, error)
	listener net.Listener // of the HTTPS API; nil for none
	load     func() error // reads the records of volumes, once

	// Made by Run.
	cgroups *cgroups.Manager
	status  *status.Writer
	runner  *pod.Runner
	static  *static
	admit   *admission
	backlog backlog
	strays  *strays
	began   chan struct{} // closed when the fields above are set
}

// New returns a Kubelet that reaches the API through s. It takes the port of the kubelet's own API
// first: if another process has it, the node must not become ready.
func New(s *client.Set, o Options) (_ *Kubelet, err error) {
	o.Log = cmp.Or(o.Log, s.Logger())
	if err := o.complete(); err != nil {
		return nil, err
	}
	listener, err := listen(o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && listener != nil {
			listener.Close()
		}
	}()
	if len(o.NodeIPs) == 0 {
		ip, err := node.Address(o.NodeName)
		if err != nil {
			return nil, fmt.Errorf("kubelet: %w", err)
		}
		o.NodeIPs = []string{ip}
	}
	if err := o.makeDirs(); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	runtime, err := cri.Dial(o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	k := &Kubelet{opts: o, set: s, cri: runtime, listener: listener, began: make(chan struct{})}
	if k.sysctls, err = sysctls.New(o.AllowedUnsafeSysctls); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	k.recorder, k.flush = s.Recorder("kubelet", o.NodeName)
	k.watched = newWatched(s, o)
	k.handlers = runtimeHandlers(s)
	if k.ranges, err = newPodRanges(o.RootDir, tellRuntime(runtime), k.addressable, o.Log); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	k.reporter, err = node.New(node.Config{
		Log: o.Log, Name: o.NodeName, Labels: o.Labels, Taints: o.Taints, Addresses: o.NodeIPs, Port: o.Port,
		MaxPods: o.MaxPods, RootDir: o.RootDir,
		Pressure: func() []v1.NodeConditionType { return k.evictor.Conditions() },
		Unready:  k.unready, PluginNetwork: o.PluginNetwork,
		Registered:   k.ranges.nodeChanged,
		VolumesInUse: func(known []v1.UniqueVolumeName) []v1.UniqueVolumeName { return k.csi.VolumesInUse(known) },
		Reported:     func(inUse []v1.UniqueVolumeName) { k.csi.Reported(inUse) },
	}, s.Kube, runtime, k.watched.node, k.recorder)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	k.csi = csi.New(csi.Options{
		Log: o.Log, RootDir: o.RootDir, NodeName: o.NodeName, BootID: k.reporter.Machine().BootID,
		Kube: s.Kube, Recorder: k.recorder, Wake: func(uid types.UID) { k.volumes.Wake(uid) },
		Report: k.reporter.Look, LookEvery: claimsEvery(o),
	})
	k.load = sync.OnceValue(k.csi.Load)
	k.volumes = volume.New(s, volume.Options{
		Log: o.Log, RootDir: o.RootDir, NodeName: o.NodeName, Allocatable: k.reporter.Allocatable, Wake: k.retry,
		RecursiveReadOnly: k.recursiveReadOnly, NodeLabels: k.labels, Watch: o.shared(s), Provisioned: o.LocalPathDir,
		Sources: []source.Source{k.csi}, Alias: defaultRoot,
	})
	k.env = env.New(s, env.Options{Log: o.Log, NodeName: o.NodeName, RootDir: o.RootDir, Allocatable: k.reporter.Allocatable})
	k.probes = probe.New(runtime.Exec, k.recorder, k.wake)
	k.puller, err = images.NewPuller(runtime, k.recorder, pullSecrets(s.Kube), o.RootDir, o.Log)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	k.collect = images.NewCollector(runtime, k.puller, o.ImageGC, k.recorder, node.Ref(o.NodeName), o.Log)
	k.collect.Mounted = k.mountedImages
	k.evictor = eviction.New(eviction.Options{
		Log: o.Log, Policy: o.Eviction, RootDir: o.RootDir, ImageDir: k.collect.Dir, Runtime: runtime,
		Pods: k.active, Volumes: k.volumes.OwnUsage, LogDir: podlogs.Dirs{All: o.LogDir}.Pod,
		Files:   func(p *v1.Pod) []string { return criconfig.Files(o.RootDir, p) },
		Evict:   func(uid types.UID, e status.Eviction) bool { return k.runner.Evict(uid, e) },
		Reclaim: k.collect.RemoveUnused, Changed: k.reporter.Look, Recorder: k.recorder, Node: node.Ref(o.NodeName),
	})
	return k, nil
}

// listen takes the port of the kubelet's API; the listener is nil if it serves none.
func listen(o Options) (net.Listener, error) {
	if o.Port <= 0 {
		return nil, nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(o.Address, fmt.Sprint(o.Port)))
	if err != nil {
		return nil, fmt.Errorf("the kubelet's API: %w (another kubelet may run on this machine)", err)
	}
	return listener, nil
}

// pullSecrets reads the secrets that pods name for pulling. They are granted to the node with the
// pod, so the first answer may be that they are not.
func pullSecrets(kube kubernetes.Interface) images.Secrets {
	return func(ctx context.Context, namespace, name string) (secret *v1.Secret, err error) {
		err = objects.OnceGranted(ctx, func() (err error) {
			secret, err = kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
			return err
		})
		return secret, err
	}
}

// runtimeHandlers resolves RuntimeClasses to the handlers that the runtime knows.
func runtimeHandlers(s *client.Set) func(*string) (string, error) {
	classes := s.Informers.Node().V1().RuntimeClasses().Lister()
	s.Informers.Node().V1().RuntimeClasses().Informer()
	return func(class *string) (string, error) {
		if class == nil || *class == "" {
			return "", nil
		}
		c, err := classes.Get(*class)
		if apierrors.IsNotFound(err) {
			return "", err
		}
		if err != nil {
			return "", fmt.Errorf("failed to lookup RuntimeClass %s: %w", *class, err)
		}
		return c.Handler, nil
	}
}

// Introduce registers the node as soon as the API server answers, if that is possible then. It is
// for a process with an API server that takes its time until Run may be called.
func (k *Kubelet) Introduce(ctx context.Context) {
	if k.load() == nil { // or Run says why not
		k.reporter.Introduce(ctx)
	}
}

// Run runs the node until ctx ends. It returns an error only if it cannot serve its API, or pods'
// limits would not hold.
func (k *Kubelet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = k.cri.Close() }()
	if k.listener != nil {
		defer k.listener.Close()
	}
	defer k.flush()
	defer k.probes.Close()
	k.opts.Log.Info("kubelet starts", "node", k.opts.NodeName, "runtime", k.opts.Endpoint, "addresses", k.opts.NodeIPs)
	k.recorder.Event(node.Ref(k.opts.NodeName), v1.EventTypeNormal, "Starting", "Starting kubelet.")
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if err := k.load(); err != nil {
		return fmt.Errorf("kubelet: volumes of CSI drivers: %w", err)
	}
	k.watched.start(ctx)
	wg.Go(func() { k.watchNode(ctx) })
	wg.Go(func() { k.reporter.Run(ctx) })
	if err := k.awaitRuntime(ctx); err != nil {
		return nil // ctx ended before there was one
	}
	wg.Go(func() { k.ranges.run(ctx) })
	var err error
	if k.cgroups, err = k.makeCgroups(ctx); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	wg.Go(func() { reportPodsOnOldBridge(ctx, k.cri, k.recorder, k.opts.Log) })
	k.status = status.NewWriter(ctx, k.set.Kube, k.opts.Log)
	defer k.status.Wait()
	k.runner = k.newRunner(ctx)
	defer k.runner.Wait()
	k.admit = newAdmission(k)
	k.static = newStatic(k)
	k.strays = newStrays(k)
	close(k.began)

	failed := make(chan error, 1)
	if k.listener != nil {
		s, err := k.server()
		if err != nil {
			return err
		}
		wg.Go(func() {
			if err := s.Run(ctx); err != nil && ctx.Err() == nil {
				failed <- err
			}
		})
	}
	wg.Go(func() { k.static.run(ctx) })
	wg.Go(func() { k.watchPods(ctx) })
	wg.Go(func() { k.strays.run(ctx) })
	wg.Go(func() { k.cri.Watch(ctx, k.opts.Log, k.wake, k.resync) })
	wg.Go(func() { k.collect.Run(ctx) })
	wg.Go(func() { k.evictor.Run(ctx) })
	wg.Go(func() { k.csi.Run(ctx) })
	wg.Go(func() { k.logRotator().Run(ctx) })
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// newRunner makes what runs the pods.
func (k *Kubelet) newRunner(ctx context.Context) *pod.Runner {
	users := &userNamespaces{
		log:     k.opts.Log,
		podsDir: filepath.Join(k.opts.RootDir, "pods"), maxPods: k.opts.MaxPods, handler: k.handlers, supports: k.supportsUserNamespaces,
	}
	users.open()
	return pod.NewRunner(ctx, pod.Config{
		Log: k.opts.Log,
		CRI: k.cri, Images: k.puller, Volumes: k.volumes, Env: k.env, Probes: k.probes, Status: k.status,
		Cgroups: k.cgroups, Users: users, DNS: k.dns(), Recorder: k.recorder, RuntimeHandler: k.handlers,
		AdmitResize: func(p *v1.Pod, accept func()) (string, bool) { return k.admit.resize(p, accept) },
		HostIPs:     func() []string { return k.opts.NodeIPs },
		RootDir:     k.opts.RootDir, Logs: podlogs.Dirs{All: k.opts.LogDir, Legacy: k.opts.LegacyLogDir},
		ClusterDomain: k.opts.ClusterDomain, MemoryCapacity: k.reporter.Machine().MemoryBytes,
		SeccompUnconfined: k.opts.SeccompUnconfined, Networks: k.opts.Networks, NoAddresses: k.noAddresses,
		Gone: func(uid types.UID) { k.static.gone(uid) },
	})
}

// awaitRuntime returns when the runtime answers.
func (k *Kubelet) awaitRuntime(ctx context.Context) error {
	for {
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := k.cri.Version(call)
		cancel()
		if err == nil || ctx.Err() != nil {
			k.reporter.Look()
			return ctx.Err()
		}
		k.opts.Log.Warn("waiting for the runtime", "endpoint", k.opts.Endpoint, "err", err)
	}
}

// addressable is called when pods can have addresses that could not before.
func (k *Kubelet) addressable() {
	k.reporter.Look()
	k.retryAll()
}

func (k *Kubelet) retryAll() {
	select {
	case <-k.began:
		k.runner.RetryAll()
	default:
	}
}

// unready says why a Node cannot run pods although its runtime is ready.
func (k *Kubelet) unready(n *v1.Node) error {
	if k.refused.Swap(false) { // what pods waited for is there
		k.retryAll()
	}
	if !k.opts.AwaitPodRanges {
		return nil
	}
	return k.ranges.errOf(n.UID)
}

// noAddresses says why a pod cannot have an address yet, nil if it can.
func (k *Kubelet) noAddresses() error {
	if k.opts.AwaitPodRanges {
		if err := k.ranges.err(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := k.reporter.NetworkErr(ctx)
	if err != nil {
		k.refused.Store(true)
		k.reporter.Look()
	}
	return err
}

// makeCgroups decides who makes pods' cgroups.
func (k *Kubelet) makeCgroups(ctx context.Context) (*cgroups.Manager, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := k.cri.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err == nil && c.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD && c.GetLinux() != nil {
		return cgroups.Off("the runtime has systemd make cgroups", k.opts.PodPIDs, k.opts.Log), nil
	}
	allocatable := k.reporter.Allocatable()
	return cgroups.New(k.opts.CgroupRoot, cgroups.Limits{
		MilliCPU: allocatable.Cpu().MilliValue(), MemoryBytes: allocatable.Memory().Value(), PodPIDs: k.opts.PodPIDs,
	}, k.opts.Log)
}

// server makes the kubelet's HTTPS API.
func (k *Kubelet) server() (*server.Server, error) {
	o := server.Options{
		Log:      k.opts.Log,
		NodeName: k.opts.NodeName, Kube: k.set.Kube, RootDir: k.opts.RootDir, Listener: k.listener,
		Volumes: k.volumes.Usage, Claims: k.volumes.ClaimUsage, ClientCAFile: k.opts.ClientCAFile,
	}
	var err error
	switch {
	case k.opts.Serving != nil:
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := k.opts.Serving(); c != nil {
				return c, nil
			}
			return nil, errNotCertified
		}}
	case k.opts.CertFile != "":
		if o.TLS, err = servingTLS(k.opts.CertFile, k.opts.KeyFile); err != nil {
			return nil, fmt.Errorf("kubelet: serving certificate: %w", err)
		}
	}
	return server.New(k, k.cri, o)
}

// wake has a pod looked at again; before Run there is none.
func (k *Kubelet) wake(uid types.UID) {
	select {
	case <-k.began:
		if !k.runner.Wake(uid) {
			k.strays.add(uid)
		}
	default:
	}
}

// resync is called when the runtime's events have started: some may have been missed.
func (k *Kubelet) resync() {
	k.ranges.resync()
	k.runner.WakeAll()
	if k.opts.RuntimeStarted != nil {
		k.opts.RuntimeStarted()
	}
}

// retry has a pod looked at again whose volumes may be complete now.
func (k *Kubelet) retry(uid types.UID) {
	select {
	case <-k.began:
		k.runner.Retry(uid)
	default:
	}
}

// Registered returns the node's addresses as the API has them, nil if it does not have the node
// yet.
func (k *Kubelet) Registered() []v1.NodeAddress {
	n, err := k.watched.node()
	if err != nil {
		return nil
	}
	return n.Status.Addresses
}

// labels returns the node's labels as the API has them, nil if it does not have the node yet.
func (k *Kubelet) labels() map[string]string {
	n, err := k.watched.node()
	if err != nil {
		return nil
	}
	return n.Labels
}

// recursiveReadOnly says whether the runtime can mount recursively read-only for the pod.
func (k *Kubelet) recursiveReadOnly(p *v1.Pod) bool {
	handler, err := k.handlers(p.Spec.RuntimeClassName)
	if err != nil {
		return false
	}
	f := k.features(handler)
	return f != nil && f.RecursiveReadOnlyMounts != nil && *f.RecursiveReadOnlyMounts
}

// supportsUserNamespaces says whether the runtime can give a pod of this handler a user namespace.
func (k *Kubelet) supportsUserNamespaces(handler string) bool {
	f := k.features(handler)
	return f != nil && f.UserNamespaces != nil && *f.UserNamespaces
}

// features returns what the runtime says of a handler, nil for nothing.
func (k *Kubelet) features(handler string) *v1.NodeRuntimeHandlerFeatures {
	for _, h := range k.reporter.Node().Status.RuntimeHandlers {
		if h.Name == handler {
			return h.Features
		}
	}
	return nil
}

// logging is a recorder for upstream's packages that want one with a logger.
func logging(r record.EventRecorder) record.EventRecorderLogger {
	if l, ok := r.(record.EventRecorderLogger); ok {
		return l
	}
	return plainRecorder{r}
}

type plainRecorder struct{ record.EventRecorder }

func (p plainRecorder) WithLogger(klog.Logger) record.EventRecorderLogger { return p }

// errNotCertified is what a client is told, and the log, before the first certificate comes.
var errNotCertified = errors.New("the kubelet has no serving certificate yet")

// errNotStarted is what is answered before Run has the runtime's word.
var errNotStarted = errors.New("the kubelet is waiting for the container runtime")
