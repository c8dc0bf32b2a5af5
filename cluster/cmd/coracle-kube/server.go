package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers"
	"github.com/coracle-project/coracle/cluster/controllers/certificates"
	"github.com/coracle-project/coracle/cluster/controllers/localpath"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/imagepeers"
	"github.com/coracle-project/coracle/cluster/kubelet/node"
	"github.com/coracle-project/coracle/cluster/nodeaddr"
	"github.com/coracle-project/coracle/cluster/pki"
	"github.com/coracle-project/coracle/cluster/scheduler"
	schedulerconfig "github.com/coracle-project/coracle/cluster/scheduler/config"
	"github.com/coracle-project/coracle/cluster/unserved"
)

func serverCommand(log *slog.Logger, g *gate) *cobra.Command {
	api, n := apiOptions{log: log}, nodeOptions{log: log}
	var d dnsOptions
	var m manifestsDir
	var check, atGate bool
	cmd := &cobra.Command{
		Use:   "server",
		Short: "run API server, scheduler, controllers and kubelet in this process",
		Long: `server runs a whole single-node Kubernetes. The parts share one set of informers and reach the API
server without a socket; each acts in its own name, as RBAC allows it. Pods go on when it ends, and
it finds them again when it is started.`,
		Example: `  coracle-kube server
  coracle-kube server --root /srv/kube --port 7443 --cri unix:///run/containerd/containerd.sock`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if atGate && g == nil {
				return fmt.Errorf("--%s without $%s", gateFlag, gateVariable)
			}
			api.pods = nodeaddr.NewPods(log)
			api.clusterDomain, n.pods = n.domain, api.pods
			if check || g != nil {
				if err := checkMachine(api, n, d, m); err != nil || check {
					return err
				}
			} else if err := m.check(); err != nil {
				return err
			}
			if err := g.pass(cmd.Context()); err != nil {
				return err
			}
			return serve(cmd.Context(), api, n, d, m)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "only say what is wrong with the flags, if anything")
	cmd.Flags().BoolVar(&atGate, gateFlag, false, "wait at the gate that the environment names")
	_ = cmd.Flags().MarkHidden(gateFlag) // "coracle up" gives it
	cmd.Flags().BoolVar(&api.proxy, "service-proxy", true, "route connections to Services on this node; false if another proxy does")
	cmd.Flags().BoolVar(&api.externalIPs, "allow-external-ips", false, "route the externalIPs of Services, which can take over any address")
	cmd.Flags().StringVar(&api.scheduler, "scheduler-config", "", schedulerConfigUsage)
	cmd.Flags().BoolVar(&api.policies, "network-policies", true,
		"enforce NetworkPolicies for this node's pods; false if a network plugin does")
	api.define(cmd.Flags())
	api.balancers.define(cmd.Flags())
	api.lifetimes.define(cmd.Flags())
	m.define(cmd.Flags())
	n.define(cmd.Flags())
	d.define(cmd.Flags())
	return cmd
}

// checkMachine says what is wrong with the flags, if anything, also on this machine as it is now.
func checkMachine(api apiOptions, n nodeOptions, d dnsOptions, m manifestsDir) error {
	release, err := claimPort(api.port, api.log)
	if err == nil {
		err = release()
	}
	return errors.Join(checkAll(api, n, d), m.check(), err, api.settings().Listens(), api.balancers.checkHost(api.port))
}

// claimPort keeps other clusters of this machine from using the port at another address: nftables
// tables and the sink of announcements are named by it. "coracle down" looks for the claim.
func claimPort(port int, log *slog.Logger) (release func() error, err error) {
	release, err = nodeaddr.Claim("coracle-cluster-"+strconv.Itoa(port), log)
	if errors.Is(err, nodeaddr.ErrClaimed) {
		return nil, fmt.Errorf("another cluster of this machine has port %d, though it may be at another address: choose another --port", port)
	}
	return release, err
}

// checkAll says what is wrong with the flags, if anything.
func checkAll(api apiOptions, n nodeOptions, d dnsOptions) error {
	if n.podNetwork == encryptedPodNetwork && slices.Equal(api.podCIDR, []string{noPodCIDR}) {
		return errors.New("--pod-network wireguard needs networks of pods, and --pod-cidr none leaves the cluster without")
	}
	err := errors.Join(api.check(), api.lifetimes.check(), n.check())
	if err == nil {
		_, err = n.clusterDNS(api.services())
	}
	_, stubs := d.servers()
	_, schedule := schedulerconfig.Load(api.scheduler)
	return errors.Join(err, stubs, schedule)
}

// serve runs all parts until ctx ends or one of them fails.
func serve(ctx context.Context, api apiOptions, n nodeOptions, d dnsOptions, m manifestsDir) error {
	began := time.Now()
	if err := checkAll(api, n, d); err != nil {
		return err
	}
	if err := n.findAddress(); err != nil {
		return err
	}
	release, err := claimPort(api.port, api.log)
	if err != nil {
		return err
	}
	defer func() { _ = release() }() // it goes with the process
	if err := api.finishInterrupted(); err != nil {
		return err
	}
	var board health.Board
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if err := api.findPeers(n.name, &board, stop); err != nil {
		return err
	}
	bundle, err := api.credentials(n.name, n.ips)
	if err != nil {
		return err
	}
	api.podsHealth = board.Add("API for pods")
	if len(api.etcdServers) == 0 {
		api.storeHealth = board.Add("store")
	}
	if api.protect.audit.Enabled() {
		api.protect.audit.Health = board.Add("audit log")
	}
	if api.protect.encryption != "" {
		api.encryptionHealth = board.Add("encryption")
	}
	api.processors = adaptProcessors()
	if !api.policies {
		api.unserved = unserved.Policies
	}
	server, err := api.server(bundle)
	if err != nil {
		return err
	}
	parts, err := leadingParts(server, bundle, api, n, &board)
	if err != nil {
		return err
	}
	own, err := serverNode(server, bundle, api, n, d)
	if err != nil {
		return err
	}
	ofNode, err := own.parts(&board)
	if err != nil {
		return err
	}
	parts = append(parts, ofNode.run...)
	asker := newAsker(server.Informers(), n.name, n.domain, api.services(), ofNode.routes, ofNode.names, ofNode.policies)
	asker.PodDNS = ofNode.kubelet.PodDNS
	if asker.ClusterDNS, err = n.clusterDNS(api.services()); err != nil {
		return err
	}
	if parts, err = withObjects(server, m, n.name, &board, parts); err != nil {
		return err
	}
	if parts, err = withClusterInfo(server, bundle, api, n, d, parts); err != nil {
		return err
	}
	more := map[string]http.Handler{health.Path: health.Handler(&board), whyPath: answerWhy(asker)}
	// No role is needed for it. The controllers then find the node when they begin.
	defer meanwhile(ctx, ofNode.kubelet.Introduce)()
	err = together(ctx, server, began, &api, more, newRenewer(server, &api, &n, &board), parts...)
	if cause := context.Cause(ctx); errors.Is(cause, errAgain) {
		return errors.Join(err, cause)
	}
	return err
}

// findAddress has the node have an address.
func (o *nodeOptions) findAddress() error {
	if len(o.ips) > 0 {
		return nil
	}
	ip, err := node.Address(o.name)
	if err != nil {
		return fmt.Errorf("%w; name one with --node-ip", err)
	}
	o.ips = []string{ip}
	return nil
}

// meanwhile calls f, and returns what ends it and waits for that.
func meanwhile(ctx context.Context, f func(context.Context)) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f(ctx)
	}()
	return func() {
		stop()
		<-ended
	}
}

// leadingParts are the scheduler and the controllers, of which one of several control-plane nodes
// runs each. Informers are asked for by New of a part, and started by the server as soon as it
// serves; by a part that comes to lead later itself.
func leadingParts(server *apiserver.Server, bundle *pki.Bundle, api apiOptions, n nodeOptions, board *health.Board,
) ([]func(context.Context) error, error) {
	schedule := func() (func(context.Context) error, error) {
		s, err := newScheduler(server, api.scheduler)
		if err != nil {
			return nil, err
		}
		return s.Run, nil
	}
	control := func() (func(context.Context) error, error) {
		all, err := newControllers(server, bundle, api, n, board.Add("objects not acted on"))
		return func(ctx context.Context) error {
			controllers.Run(ctx, all)
			return nil
		}, err
	}
	var parts []func(context.Context) error
	for _, p := range []struct {
		name, identity string
		make           func() (func(context.Context) error, error)
	}{{"kube-scheduler", user.KubeScheduler, schedule}, {"kube-controller-manager", user.KubeControllerManager, control}} {
		if api.several {
			held, err := leases(server.ClientConfig(p.identity))
			if err != nil {
				return nil, err
			}
			parts = append(parts, leading(p.name, n.name, held, server.Log(), func(ctx context.Context) error {
				run, err := p.make()
				if err != nil {
					return err
				}
				server.Informers().Start(ctx.Done())
				return run(ctx)
			}))
			continue
		}
		run, err := p.make()
		if err != nil {
			return nil, err
		}
		parts = append(parts, run)
	}
	if api.several {
		provision, err := localPathPart(server, api.root, n.name)
		return append(parts, provision), err
	}
	return parts, nil
}

// cleaning is a part that removes what an earlier run with other flags has left. As a part it runs
// when the server has its port: until then, what is there may be of a server that runs.
func cleaning(log *slog.Logger, what string, remove func() error) func(context.Context) error {
	return func(context.Context) error {
		if err := remove(); err != nil {
			log.Warn(what+" of an earlier run are left", "err", err)
		}
		return nil
	}
}

// together runs the API server and the parts until ctx ends or one of them fails. The API server
// ends last: the others have something to write when they end.
// more is served on the socket for root, by path.
func together(ctx context.Context, server *apiserver.Server, began time.Time, o *apiOptions, more map[string]http.Handler,
	renewal *renewer, parts ...func(context.Context) error,
) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	work, ctx := errgroup.WithContext(ctx)
	api := make(chan error, 1)
	go func() { api <- server.Run(serving) }()
	work.Go(func() error { // the API server's end is the others' end
		select {
		case err := <-api:
			api <- err
			return err
		case <-ctx.Done():
			return nil
		}
	})
	work.Go(func() error {
		more[renewPath] = http.HandlerFunc(renewal.answerRenew)
		listener, err := listenForProfiles(ctx, o.settings().State)
		if err == nil {
			err = serveProfiles(ctx, listener, more)
		}
		if err != nil {
			server.Log().Warn("no profiles are served", "err", err)
		}
		return nil
	})
	// The parts begin when the built-in roles and namespaces are there: what they would try before
	// would fail, and be tried again only after a pause.
	for _, part := range parts {
		work.Go(func() error {
			select {
			case <-server.Ready():
				return part(ctx)
			case <-ctx.Done():
				return nil
			}
		})
	}
	work.Go(func() error {
		if err := waitReady(ctx, server.Ready(), func() (passed, byClock time.Duration) { return sinceThen(began, time.Now()) }); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		server.Log().Info("serving", "address", server.Address(), "after", time.Since(began).Round(time.Millisecond), "version", versions())
		go restWhenCalm(ctx, o.processors, server.Log())
		if err := renewal.tell(filepath.Join(o.root, "pki")); err != nil {
			server.Log().Error("certificates", "err", err)
		}
		renewal.run(ctx, began)
		return nil
	})
	failed := work.Wait()
	stop()
	return errors.Join(failed, withoutRepeat(<-api, failed))
}

// withoutRepeat returns err unless it is what was said before.
func withoutRepeat(err, before error) error {
	if errors.Is(before, err) {
		return nil
	}
	return err
}

func nodeFiles(bundle *pki.Bundle, n *nodeOptions) (pki.NodeFiles, error) {
	return bundle.Node(n.name, append([]string{n.name, "127.0.0.1"}, n.ips...))
}

// in gives a part of this process its own identity.
func in(server *apiserver.Server, name string, groups ...string) (*client.Set, error) {
	return client.New(server.ClientConfig(name, groups...), server.Informers(), server.Log())
}

const schedulerConfigUsage = "`FILE` with a KubeSchedulerConfiguration: profiles, plugins and extenders of the scheduler (default: " +
	"upstream's defaults)"

func newScheduler(server *apiserver.Server, config string) (*scheduler.Scheduler, error) {
	set, err := in(server, user.KubeScheduler)
	if err != nil {
		return nil, err
	}
	o, err := schedulerconfig.Load(config)
	if err != nil {
		return nil, err
	}
	return scheduler.New(set, o)
}

func newControllers(server *apiserver.Server, bundle *pki.Bundle, api apiOptions, n nodeOptions,
	notActedOn *health.Part,
) ([]controllers.Runner, error) {
	manager, err := in(server, user.KubeControllerManager)
	if err != nil {
		return nil, err
	}
	account := func(name string) (*client.Set, error) {
		return in(server, serviceaccount.MakeUsername(metav1.NamespaceSystem, name), serviceaccount.MakeGroupNames(metav1.NamespaceSystem)...)
	}
	ca, err := followAuthority(bundle.CACert)
	if err != nil {
		return nil, err
	}
	tokens, err := tokenGenerator(bundle.ServiceAccountKey)
	if err != nil {
		return nil, err
	}
	hosts, err := api.hosts(n.name, n.ips)
	if err != nil {
		return nil, err
	}
	ranges, err := api.podRanges()
	if err != nil {
		return nil, err
	}
	balanced, err := api.balancers.pool()
	if err != nil {
		return nil, err
	}
	o := controllers.Options{
		RootCA: ca, TokenGenerator: tokens, NotActedOn: notActedOn, Unserved: api.unserved,
		LoadBalancers: api.balancers.controller(api.port, n.port),
		LocalPath:     api.localPathIfAlone(n.name),
		Reserved:      certificates.Reserved{Hosts: hosts, Domain: n.domain, Pods: ranges.Pods, LoadBalancers: balanced},
		Joinable:      api.settings().URL() != "", PodRanges: ranges, NamespaceSettle: api.namespaceSettle(),
		SigningCA: func() (tls.Certificate, error) { return tls.LoadX509KeyPair(bundle.CA, bundle.CA) },
	}
	api.lifetimes.set(&o)
	all, err := controllers.New(controllers.Identities{Manager: manager, Account: account}, o)
	return append(all, ca), err
}

// serverNode is the node that the cluster's process runs itself.
func serverNode(server *apiserver.Server, bundle *pki.Bundle, api apiOptions, n nodeOptions, d dnsOptions) (*nodeProcess, error) {
	files, err := nodeFiles(bundle, &n)
	if err != nil {
		return nil, err
	}
	services, err := apiserver.ServiceNetworks(api.serviceCIDR)
	if err != nil {
		return nil, err
	}
	ranges, err := api.podRanges()
	if err != nil {
		return nil, err
	}
	var layers imagepeers.Options
	if api.settings().URL() != "" { // other machines can join
		layers = imagepeers.Options{CA: bundle.CACert, Client: files.Client, Serving: files.Serving}
	}
	return &nodeProcess{
		layers:      layers,
		nodeOptions: n, names: d, root: api.root, port: api.port, services: services,
		balancers: api.balancers, proxy: api.proxy, externalIPs: api.externalIPs, policies: api.policies, forgetNodes: true,
		as:        func(name string, groups ...string) (*client.Set, error) { return in(server, name, groups...) },
		policyAPI: server.ClientConfig("system:coracle-policy", user.SystemPrivilegedGroup),
		certFile:  files.Serving, clientCA: bundle.CACert, localPath: localpath.VolumesDir(localPathRoot(api.root)),
		reserved: map[int]string{api.port: "the API server"}, awaitRanges: len(ranges.Pods) > 0, pods: ranges.Pods,
	}, nil
}
