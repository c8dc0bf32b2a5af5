// Package registration finds the CSI drivers of this node by their registrars' sockets, and
// publishes what they say of the node: in its CSINode, and in labels and an annotation of its Node.
package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/background"
	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
)

const (
	// mostSockets bounds how many sockets are looked at.
	mostSockets = 256
	// registerTimeout bounds a call to a registrar.
	registerTimeout = 10 * time.Second
	// A registration that failed is tried again after firstTry, then after twice as long each time.
	firstTry = 200 * time.Millisecond
	lastTry  = time.Minute
	// apiTimeout bounds a call of the API.
	apiTimeout = 30 * time.Second
	// kubeletDir is where drivers expect the kubelet's directory.
	kubeletDir = "/var/lib/kubelet"
)

// Options are what a registry needs of its owner.
type Options struct {
	// RootDir is the kubelet's directory, an absolute path.
	RootDir string
	// NodeName is this node's name.
	NodeName string
	Kube     kubernetes.Interface
	Log      *slog.Logger
	// Work runs what the registry does in the background.
	Work *background.Group
	// Registered is called when a driver of that name can be used.
	Registered func(name string)
}

// Registry has the drivers of this node. It is safe for concurrent use.
type Registry struct {
	opts  Options
	state *csiNode

	mu      sync.Mutex
	drivers map[string][]*driver // by name, the newest registration last
	sockets map[string]*socket   // by file name
}

// driver is one registration of a driver. It does not change.
type driver struct {
	client.Driver
	// from is the registrar's socket.
	from *socket
}

// Unknown is the error for a driver that is not registered.
type Unknown string

func (e Unknown) Error() string {
	return fmt.Sprintf(
		"driver name %s not found in the list of registered CSI drivers: run the driver on this node, or wait until it has started", string(e),
	)
}

// New returns a registry without drivers. It touches nothing.
func New(o Options) *Registry {
	r := &Registry{opts: o, drivers: map[string][]*driver{}, sockets: map[string]*socket{}}
	r.state = newCSINode(r)
	return r
}

// Run registers drivers until ctx ends.
func (r *Registry) Run(ctx context.Context) {
	r.watchSockets(ctx)
	r.mu.Lock()
	for name, s := range r.sockets {
		s.end()
		delete(r.sockets, name)
	}
	r.mu.Unlock()
	r.state.close()
}

// Driver returns the driver of that name, or Unknown.
func (r *Registry) Driver(name string) (*client.Driver, error) {
	if d := r.latest(name); d != nil {
		return &d.Driver, nil
	}
	return nil, Unknown(name)
}

// Has says whether a driver of that name is registered.
func (r *Registry) Has(name string) bool { return r.latest(name) != nil }

// latest returns the driver of that name that was registered last, nil if there is none.
func (r *Registry) latest(name string) *driver {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latestLocked(name)
}

func (r *Registry) latestLocked(name string) *driver {
	if all := r.drivers[name]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

// NodeIs is told the UID of the Node: one that was deleted and made again needs a new CSINode.
func (r *Registry) NodeIs(uid types.UID) { r.state.nodeIs(uid) }

// Follow has a driver asked from time to time how many volumes the node can have, if its CSIDriver
// says so.
func (r *Registry) Follow(name string, object *storagev1.CSIDriver) { r.state.follow(name, object) }

// CountAgain asks a driver in the background how many volumes the node can have now.
func (r *Registry) CountAgain(name string) {
	r.opts.Work.Start(func(ctx context.Context) {
		if err := r.Count(ctx, name); err != nil {
			r.opts.Log.Warn("csi: how many volumes the node can have is not known", "driver", name, "err", err)
		}
	})
}

// Count asks a driver how many volumes the node can have now, and publishes that.
func (r *Registry) Count(ctx context.Context, name string) error {
	d := r.latest(name)
	if d == nil {
		return nil // gone; its next registration tells
	}
	object, err := Object(ctx, r.opts.Kube, name)
	if err == nil {
		r.state.follow(name, object)
	}
	now := *d
	if e := now.Ask(ctx); e != nil {
		return errors.Join(err, e)
	}
	if r.latest(name) != d {
		return err
	}
	return errors.Join(err, r.state.publish(ctx, &now))
}

// Object returns the CSIDriver object of a driver, nil if there is none.
func Object(ctx context.Context, kube kubernetes.Interface, name string) (*storagev1.CSIDriver, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	o, err := kube.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read csidriver %s: %w", name, err)
	}
	return o, nil
}

// deregisterLocked forgets what a socket has registered. Another registration of the same driver
// stays.
func (r *Registry) deregisterLocked(s *socket) {
	if s.driver == nil {
		return
	}
	name := s.driver.Name
	all := r.drivers[name]
	for i, d := range all {
		if d == s.driver {
			all = append(all[:i:i], all[i+1:]...)
			break
		}
	}
	r.drivers[name] = all
	s.driver = nil
	heir := r.latestLocked(name)
	if heir == nil {
		delete(r.drivers, name)
		r.opts.Log.Info("csi: driver gone; its volumes stay as they are", "driver", name)
	}
	r.opts.Work.Start(func(context.Context) { r.state.withdraw(name, s, heir) })
}

// register asks a registrar about its driver, and the driver about this node, until that succeeds
// or the socket is gone.
func (r *Registry) register(ctx context.Context, s *socket) {
	for wait := firstTry; ; wait = min(2*wait, lastTry) {
		err := r.tryRegister(ctx, s)
		if err == nil || ctx.Err() != nil || errors.Is(err, errNotCSI) {
			return
		}
		r.opts.Log.Warn("csi: driver not registered yet", "socket", s.path, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// errNotCSI is of a registrar of something else.
var errNotCSI = errors.New("this kubelet registers CSI drivers only")

func (r *Registry) tryRegister(ctx context.Context, s *socket) error {
	conn, err := client.Dial(s.path)
	if err != nil {
		return err
	}
	defer conn.Close()
	registrar := registerapi.NewRegistrationClient(conn)
	call, cancel := context.WithTimeout(ctx, registerTimeout)
	info, err := registrar.GetInfo(call, &registerapi.InfoRequest{}, grpc.WaitForReady(false))
	cancel()
	if err != nil {
		return err
	}
	d, err := r.describe(s, info)
	if err == nil {
		err = d.Ask(ctx)
	}
	if err == nil {
		err = r.state.publish(ctx, d)
	}
	if err == nil && !r.admit(ctx, s, d) {
		return ctx.Err()
	}
	answer := &registerapi.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		answer.Error = err.Error()
	}
	call, cancel = context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	if _, e := registrar.NotifyRegistrationStatus(call, answer); e != nil {
		r.opts.Log.Warn("csi: a registrar could not be told of its registration", "socket", s.path, "err", e)
	}
	return err
}

// describe checks what a registrar says.
func (r *Registry) describe(s *socket, info *registerapi.PluginInfo) (*driver, error) {
	if info.GetType() != registerapi.CSIPlugin {
		return nil, fmt.Errorf("plugin of type %.40q: %w", info.GetType(), errNotCSI)
	}
	if err := client.CheckName(info.GetName()); err != nil {
		return nil, err
	}
	if err := checkVersions(info.GetSupportedVersions()); err != nil {
		return nil, fmt.Errorf("driver %s: %w", info.GetName(), err)
	}
	d := &driver{from: s, Driver: client.Driver{
		Name: info.GetName(), Endpoint: strings.TrimPrefix(info.GetEndpoint(), "unix://"), Here: r.opts.RootDir, There: r.opts.RootDir,
	}}
	if d.Endpoint == "" {
		d.Endpoint = s.path
	}
	if !filepath.IsAbs(d.Endpoint) || strings.ContainsRune(d.Endpoint, 0) {
		return nil, fmt.Errorf("driver %s: endpoint %.200q is not the absolute path of a socket", d.Name, info.GetEndpoint())
	}
	d.Endpoint = filepath.Clean(d.Endpoint)
	// A driver says by its endpoint where it has the kubelet's directory.
	if rest, ok := strings.CutPrefix(d.Endpoint, kubeletDir+"/"); ok && !strings.HasPrefix(d.Endpoint, r.opts.RootDir+"/") {
		d.Endpoint, d.There = filepath.Join(r.opts.RootDir, rest), kubeletDir
	}
	return d, nil
}

// checkVersions wants one of CSI 1.x.
func checkVersions(all []string) error {
	for _, text := range all {
		if v, err := version.ParseGeneric(text); err == nil && v.Major() == 1 {
			return nil
		}
	}
	return fmt.Errorf("none of the versions specified %.200q are supported: this kubelet has CSI 1.x", all)
}

// admit makes a driver known, unless its socket has gone meanwhile, and goes on with all that waits
// for it.
func (r *Registry) admit(ctx context.Context, s *socket, d *driver) bool {
	r.mu.Lock()
	if ctx.Err() != nil {
		heir := r.latestLocked(d.Name)
		r.opts.Work.Start(func(context.Context) { r.state.withdraw(d.Name, s, heir) })
		r.mu.Unlock()
		return false
	}
	s.driver = d
	r.drivers[d.Name] = append(r.drivers[d.Name], d)
	r.mu.Unlock()
	r.opts.Log.Info("csi: driver registered", "driver", d.Name, "endpoint", d.Endpoint, "node", d.NodeID)
	r.opts.Registered(d.Name)
	r.opts.Work.Start(func(ctx context.Context) {
		if object, err := Object(ctx, r.opts.Kube, d.Name); err == nil {
			r.state.follow(d.Name, object)
		}
	})
	return true
}
