package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/internal/keylock"
	"github.com/coracle-project/coracle/network/cni"
)

// cniNet connects pods through the operator's CNI plugins. A pod is torn down
// with the configuration that it was set up with, which its record holds,
// whatever the directory says by then.
type cniNet struct {
	at      atomic.Pointer[cni.Plugins]    // SetCNI replaces it
	ranges  atomic.Pointer[[]netip.Prefix] // of pods, as the cluster has told; nil: it has not
	follow  cni.Follower
	asks    *cni.StatusCalls
	records records[cniLease]
	log     *slog.Logger
	busy    keylock.Lock  // by pod id
	wait    time.Duration // of recover for plugins: strayLimit, but in tests

	mu     sync.Mutex
	leases map[string]cniLease
}

// cniLease is what a pod has of CNI, and its record's content.
type cniLease struct {
	Version int             `json:"version"`
	PodID   string          `json:"podID"`
	Stage   stage           `json:"stage"`
	NetNS   string          `json:"netns"`
	Config  json.RawMessage `json:"config"`
	Args    [][2]string     `json:"args"`
	Caps    map[string]any  `json:"capabilities"`
	Result  Result          `json:"result"`
}

// statusLimit bounds the plugins' answer to STATUS, however long the callers wait.
const statusLimit = 10 * time.Second

func newPlugins(c Config) *cni.Plugins {
	return cni.NewPlugins(c.CNIConfDir, c.CNIBinDirs, c.CNICacheDir)
}

func newCNI(c Config) *cniNet {
	n := &cniNet{
		follow:  cni.Follower{Log: c.Log},
		asks:    cni.NewStatusCalls(statusLimit),
		records: newRecords[cniLease](c.StateDir, "cni", c.Log),
		log:     c.Log,
		leases:  map[string]cniLease{},
		wait:    strayLimit,
	}
	n.at.Store(newPlugins(c))
	return n
}

// start takes over the state in the records.
func (n *cniNet) start(all loaded[cniLease]) {
	n.records.tidy(all.left)
	n.replaceDamaged(all)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leases = all.records
}

// configured reports whether CNI is in force for the next pod; the error is a broken configuration.
func (n *cniNet) configured() (bool, error) {
	list, err := cni.Find(n.at.Load().ConfDir)
	return list != nil, err
}

// Ready implements Network: the configuration is well-formed, its plugins are there and say
// that they are ready.
func (n *cniNet) Ready(ctx context.Context) error {
	at := n.at.Load()
	list, err := n.follow.Current(at.ConfDir)
	if err != nil {
		return err
	}
	if list == nil {
		return fmt.Errorf("%w: no CNI configuration in %s", ErrConfig, at.ConfDir)
	}
	if err := at.Check(list); err != nil {
		return err
	}
	return n.asks.Status(ctx, at, list)
}

// Setup implements Network.
func (n *cniNet) Setup(ctx context.Context, p Pod) (Result, error) {
	if err := checkPodID(p.ID); err != nil {
		return Result{}, err
	}
	release, err := n.busy.Acquire(ctx, p.ID)
	if err != nil {
		return Result{}, err
	}
	defer release()
	if l, ok := n.lease(p.ID); ok {
		if l.Stage == connected && l.NetNS == p.NetNS {
			return l.Result, nil
		}
		// A crash interrupted the setup or the teardown: start again.
		if err := n.removeFor(ctx, l, p); err != nil {
			return Result{}, err
		}
	}
	l, list, err := n.plan(p)
	if err != nil {
		return Result{}, fmt.Errorf("network of pod %s: %w", p.ID, err)
	}
	if err := n.save(l); err != nil {
		return Result{}, err
	}
	l.Result, err = n.add(ctx, l, list)
	if err != nil {
		err = fmt.Errorf("network of pod %s: CNI network %q: %w", p.ID, list.Name, err)
		return Result{}, errors.Join(err, n.undo(ctx, l))
	}
	l.Stage = connected
	if err := n.save(l); err != nil {
		return Result{}, errors.Join(err, n.undo(ctx, l))
	}
	return l.Result, nil
}

// plan checks what Setup is given, before anything is changed.
func (n *cniNet) plan(p Pod) (cniLease, *libcni.NetworkConfigList, error) {
	ports, err := hostPorts(p.Ports)
	if err == nil {
		err = listenerFree(n.log, ports) // the plugin translates as we do, and does not look
	}
	if err != nil {
		return cniLease{}, nil, err
	}
	ns, err := openNetns(p.NetNS)
	if err != nil {
		return cniLease{}, nil, err
	}
	ns.Close()
	list, err := cni.Find(n.at.Load().ConfDir)
	if err != nil {
		return cniLease{}, nil, err
	}
	if list == nil {
		return cniLease{}, nil, fmt.Errorf("%w: no CNI configuration in %s", ErrConfig, n.at.Load().ConfDir)
	}
	if err := n.at.Load().Check(list); err != nil {
		return cniLease{}, nil, err
	}
	config, err := cni.Complete(list)
	if err != nil {
		return cniLease{}, nil, fmt.Errorf("%w: CNI network %q: %w", ErrConfig, list.Name, err)
	}
	var ranges []netip.Prefix
	if told := n.ranges.Load(); told != nil {
		ranges = *told
	}
	caps, err := capabilities(p, ranges)
	if err != nil {
		return cniLease{}, nil, err
	}
	return cniLease{PodID: p.ID, Stage: adding, NetNS: p.NetNS, Config: config, Args: cniArgs(p), Caps: caps}, list, nil
}

func (n *cniNet) add(ctx context.Context, l cniLease, list *libcni.NetworkConfigList) (Result, error) {
	if err := faultCniRecorded.At(ctx); err != nil {
		return Result{}, err
	}
	res, err := n.at.Load().Lib.AddNetworkList(ctx, list, l.runtime())
	if err != nil {
		return Result{}, err
	}
	if err := faultCniAdded.At(ctx); err != nil {
		return Result{}, err
	}
	return fromCNI(res)
}

// runtime is what plugins are told of the pod.
func (l cniLease) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: l.PodID, NetNS: l.NetNS, IfName: podIf, Args: l.Args, CapabilityArgs: maps.Clone(l.Caps)}
}

func cniArgs(p Pod) [][2]string {
	return [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", p.Namespace},
		{"K8S_POD_NAME", p.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", p.ID},
		{"K8S_POD_UID", p.UID},
	}
}

// fromCNI takes the pod's own addresses and DNS out of a plugin's result.
func fromCNI(res types.Result) (Result, error) {
	if res == nil {
		return Result{}, errors.New("the plugins returned no result")
	}
	r, err := types100.GetResult(res)
	if err != nil {
		return Result{}, fmt.Errorf("result: %w", err)
	}
	out := Result{DNSServers: r.DNS.Nameservers, DNSSearches: r.DNS.Search, DNSOptions: r.DNS.Options}
	for _, c := range r.IPs {
		// Addresses of interfaces that stay on the host are not the pod's.
		if c.Interface != nil && *c.Interface >= 0 && *c.Interface < len(r.Interfaces) && r.Interfaces[*c.Interface].Sandbox == "" {
			continue
		}
		ip, ok := netip.AddrFromSlice(c.Address.IP)
		if !ok {
			return Result{}, fmt.Errorf("result: %q is not an address", c.Address.IP)
		}
		out.IPs = append(out.IPs, ip.Unmap())
	}
	if len(out.IPs) == 0 {
		return Result{}, errors.New("the plugins gave the pod no address")
	}
	return out, nil
}

// Teardown implements Network.
func (n *cniNet) Teardown(ctx context.Context, p Pod) error {
	if err := checkPodID(p.ID); err != nil {
		return err
	}
	release, err := n.busy.Acquire(ctx, p.ID)
	if err != nil {
		return err
	}
	defer release()
	l, ok := n.lease(p.ID)
	if !ok {
		return nil
	}
	return n.removeFor(ctx, l, p)
}

// removeFor is remove with the pod's current data, in case the record was lost.
func (n *cniNet) removeFor(ctx context.Context, l cniLease, p Pod) error {
	l, err := n.complete(l, p)
	if err != nil {
		return fmt.Errorf("remove network of pod %s: %w", l.PodID, err)
	}
	if !l.known() {
		n.log.Warn("network record of pod was lost and there is no CNI configuration; its namespace is removed, but what plugins keep outside "+
			"it may remain", "pod", l.PodID)
		return n.forget(l)
	}
	return n.remove(ctx, l)
}

// undoLimit bounds the plugins' cleaning up after a Setup that failed.
const undoLimit = time.Minute

// undo is remove for a Setup that failed, whose context may have ended.
func (n *cniNet) undo(ctx context.Context, l cniLease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	return n.remove(ctx, l)
}

// remove takes down what there is of a lease. The caller holds the pod.
func (n *cniNet) remove(ctx context.Context, l cniLease) error {
	l.Stage = removing
	if err := ignoringFull(n.save(l)); err != nil {
		return err
	}
	list, err := libcni.NetworkConfFromBytes(l.Config)
	if err != nil {
		return fmt.Errorf("network of pod %s: recorded configuration: %w", l.PodID, err)
	}
	rt := l.runtime()
	if ns, err := openNetns(l.NetNS); err == nil {
		ns.Close()
	} else {
		rt.NetNS = "" // gone; plugins then free what is outside (CNI spec, DEL)
	}
	if err := faultCniRemoving.At(ctx); err != nil {
		return err
	}
	if err := n.at.Load().Lib.DelNetworkList(ctx, list, rt); err != nil {
		return fmt.Errorf("network of pod %s: CNI network %q: %w", l.PodID, list.Name, err)
	}
	if err := faultCniRemoved.At(ctx); err != nil {
		return err
	}
	return n.forget(l)
}

func (n *cniNet) forget(l cniLease) error {
	if err := n.records.remove(l.PodID); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.leases, l.PodID)
	return nil
}

func (n *cniNet) save(l cniLease) error {
	if err := n.records.write(l.PodID, l); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leases[l.PodID] = l
	return nil
}

func (n *cniNet) lease(podID string) (cniLease, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l, ok := n.leases[podID]
	return l, ok
}

func (n *cniNet) list() []Lease {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []Lease
	for _, l := range n.leases {
		all = append(all, Lease{PodID: l.PodID, IPs: l.Result.IPs, Removing: l.Stage == removing})
	}
	return all
}

// A start waits for the plugins to take down what belongs to no pod: for so many pods at a time,
// and so long.
const (
	straysAtOnce = 8
	strayLimit   = 10 * time.Second
)

// recover takes down what belongs to no claimed pod. What has not gone in time is still in list
// then.
func (n *cniNet) recover(ctx context.Context, claimed map[string]bool) error {
	n.adoptLost(claimed)
	// A start waits for both, in parallel. What is being removed is not garbage.
	var collected error
	var tasks errgroup.Group
	tasks.Go(func() error {
		collected = n.collect(ctx, claimed)
		return nil
	})
	removed := n.removeStrays(ctx, claimed)
	_ = tasks.Wait() // it never returns an error
	return errors.Join(removed, collected)
}

func (n *cniNet) removeStrays(ctx context.Context, claimed map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, n.wait)
	defer cancel()
	var (
		tasks errgroup.Group
		mu    sync.Mutex
		errs  []error
	)
	tasks.SetLimit(straysAtOnce)
	for _, l := range n.list() {
		if claimed[l.PodID] {
			continue
		}
		tasks.Go(func() error {
			if err := n.Teardown(ctx, Pod{ID: l.PodID}); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
			return nil
		})
	}
	_ = tasks.Wait() // it has none
	return errors.Join(errs...)
}
