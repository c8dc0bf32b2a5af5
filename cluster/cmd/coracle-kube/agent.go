package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/imagepeers"
	"github.com/coracle-project/coracle/cluster/kubelet/node"
	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
	"github.com/coracle-project/coracle/cluster/node/credentials"
	"github.com/coracle-project/coracle/cluster/nodeaddr"
	"github.com/coracle-project/coracle/cluster/pki"
)

// agent is a node whose control plane is elsewhere.
type agent struct {
	nodeOptions
	root, state string
	// member is what makes it a node of its cluster.
	member credentials.Node
}

// credentialsDir is where the agent keeps what makes it a node.
func credentialsDir(root string) string { return filepath.Join(root, "agent") }

func agentCommand(log *slog.Logger) *cobra.Command {
	a := agent{nodeOptions: nodeOptions{log: log}}
	var check bool
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "run a node of a cluster elsewhere: kubelet, service proxy, DNS and network policies",
		Long: `agent runs a node of a cluster that this machine has joined ("coracle join"), in one process. It needs no
control plane to go on with the pods that it has.`,
		Example: "  coracle-kube agent\n  coracle-kube agent --root /srv/kube --cri unix:///run/containerd/containerd.sock",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check {
				return a.check()
			}
			if err := a.load(); err != nil {
				return err
			}
			return a.serve(cmd.Context())
		},
	}
	cmd.PersistentFlags().StringVar(&a.root, "root", "/var/lib/coracle/kube", "directory for what outlives a reboot")
	cmd.Flags().StringVar(&a.state, "state", "/run/coracle", "directory for what a reboot may lose")
	cmd.Flags().BoolVar(&check, "check", false, "only say what is wrong with the flags, if anything")
	a.define(cmd.Flags())
	cmd.AddCommand(joinCommand(&a.root))
	cmd.AddCommand(memberCommands(&a.root, log)...)
	return cmd
}

// load reads the agent's credentials.
func (a *agent) load() (err error) {
	if a.member, err = credentials.Read(credentialsDir(a.root), a.log); err != nil {
		return err
	}
	a.name = a.member.Name
	return a.member.Check(time.Now())
}

// serve runs the node until ctx ends or one of its parts fails.
func (a *agent) serve(ctx context.Context) error {
	if err := a.check(); err != nil {
		return err
	}
	if len(a.ips) == 0 {
		ip, err := node.Address(a.name)
		if err != nil {
			return fmt.Errorf("%w; name one with --node-ip", err)
		}
		a.ips = []string{ip}
	}
	port, err := serverPort(a.member.Server)
	if err != nil {
		return err
	}
	release, err := claimPort(port, a.log)
	if err != nil {
		return err
	}
	defer func() { _ = release() }() // it goes with the process
	settings, set, err := a.connect(ctx)
	if err != nil {
		return err
	}
	processors := adaptProcessors()
	var board health.Board
	var keeper *credentials.Keeper
	p := a.node(settings, port)
	p.as = func(string, ...string) (*client.Set, error) { return set, nil }
	spare, err := spareServing(settings, a.name)
	if err != nil {
		return err
	}
	p.serving = func() *tls.Certificate { return cmp.Or(keeper.Serving(), spare) }
	parts, err := p.parts(&board)
	if err != nil {
		return err
	}
	if keeper, err = a.member.Keep(set.Kube, parts.kubelet.Registered); err != nil {
		return err
	}
	certificates := a.tellCertificates(board.Add("certificates")) // the last: from here on others may ask for all parts
	listener, err := listenForProfiles(ctx, filepath.Join(a.state, "kube"))
	if err != nil {
		a.log.Warn("no profiles are served", "err", err)
	}
	work, ctx := errgroup.WithContext(ctx)
	if listener != nil {
		work.Go(func() error {
			return serveProfiles(ctx, listener, map[string]http.Handler{health.Path: health.Handler(&board)})
		})
	}
	if settings.Version != 0 {
		parts.run = append(parts.run, a.member.Follow(set, keeper).Run)
	}
	for _, run := range append(parts.run, keeper.Run, certificates) {
		work.Go(func() error { return run(ctx) })
	}
	go restWhenCalm(ctx, processors, a.log)
	set.Informers.Start(ctx.Done())
	defer set.Informers.Shutdown()
	a.log.Info("agent starts", "node", a.name, "server", a.member.Server, "version", versions())
	return work.Wait()
}

// spareServing is what the kubelet of a control plane of upstream serves with until someone
// approves its request for a serving certificate, which upstream leaves to people: one that no one
// vouches for, as upstream's kubelets have. API servers of ours believe no such certificate.
func spareServing(s clusterinfo.Settings, name string) (*tls.Certificate, error) {
	if s.Version != 0 {
		return nil, nil
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey(name, nil, nil)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	return &pair, err
}

// connect returns the cluster's settings, and how the node acts on its API. A cluster that has
// settings is one of ours, whose API servers can replace each other.
func (a *agent) connect(ctx context.Context) (clusterinfo.Settings, *client.Set, error) {
	config := a.member.Config()
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return clusterinfo.Settings{}, nil, err
	}
	settings, err := a.settings(ctx, kube)
	if err != nil || settings.Version == 0 {
		set, serr := client.New(config, client.NewInformers(kube), a.log)
		return settings, set, errors.Join(err, serr)
	}
	all, err := a.member.Servers()
	if err != nil {
		return settings, nil, err
	}
	config = a.member.Through(all)
	if kube, err = kubernetes.NewForConfig(config); err != nil {
		return settings, nil, err
	}
	set, err := client.New(config, client.NewInformers(kube), a.log)
	if err != nil {
		return settings, nil, err
	}
	return settings, set, all.Follow(set.Informers.Discovery().V1().EndpointSlices())
}

// tellCertificates returns what says again and again how the node's certificates are, also when
// the clock was set.
func (a *agent) tellCertificates(part *health.Part) func(context.Context) error {
	return func(ctx context.Context) error {
		var logged repeated
		tick := time.NewTicker(clockEvery)
		defer tick.Stop()
		for {
			expires, err := tellCertificates(part, credentialsDir(a.root), a.log, &logged)
			if err != nil && logged.due(err.Error(), time.Now()) {
				a.log.Error("the node's certificates", "err", err)
			}
			told := time.Now()
			next := time.After(lookAgain(expires, told))
			for waits := true; waits; {
				select {
				case <-next:
					waits = false
				case <-tick.C:
					now := time.Now()
					waits = !wasSet(now.Sub(told), now.Round(0).Sub(told.Round(0)), agentClockSlack)
				case <-ctx.Done():
					return nil
				}
			}
		}
	}
}

// node is what runs on this machine, as the cluster's settings say.
func (a *agent) node(s clusterinfo.Settings, port int) *nodeProcess {
	n := a.nodeOptions
	n.pods = nodeaddr.NewPods(a.log)
	n.dns, n.domain = []string{noDNS}, "cluster.local"
	if s.ClusterDomain != "" {
		n.domain = s.ClusterDomain
	}
	if len(s.ClusterDNS) > 0 {
		n.dns = nil
		for _, addr := range s.ClusterDNS {
			n.dns = append(n.dns, addr.String())
		}
	}
	// What this version does not know is the default.
	if slices.Contains([]string{noPodNetwork, cniPodNetwork, encryptedPodNetwork}, s.PodNetwork) {
		n.podNetwork = s.PodNetwork
	}
	p := &nodeProcess{
		nodeOptions: n, names: dnsOptions{stubs: s.StubDomains}, root: a.root, port: port, services: s.ServiceCIDRs,
		balancers: balancerOptions{ranges: s.LoadBalancerCIDRs}, proxy: s.ServiceProxy, externalIPs: s.ExternalIPs, policies: s.NetworkPolicies,
		clientCA: a.member.CAFile(), awaitRanges: len(s.PodCIDRs) > 0, pods: s.PodCIDRs,
		alone:        true, // nodes may not follow claims and volumes
		dnsElsewhere: s.Version == 0,
	}
	client, serving := a.member.Pairs()
	p.layers = imagepeers.Options{CA: a.member.CAFile(), Client: client, Serving: serving}
	return p
}

// settingsLimit is how long an agent without settings of before waits for an API server that has
// not loaded its roles yet and refuses to show them.
const settingsLimit = time.Minute

// foreignAfter is how long a machine that joins is refused the cluster's settings until the control
// plane counts as one of upstream, whose nodes may not read such a ConfigMap. One of ours lets
// nodes read it as soon as it has made its roles. It signs no node's certificate before that.
const foreignAfter = 5 * time.Second

// firstSettings returns what saves the settings of the cluster that a machine joins. The agent
// tells by them afterwards which kind of control plane refuses to show it settings.
func firstSettings(root string) func(context.Context, kubernetes.Interface) error {
	return func(ctx context.Context, kube kubernetes.Interface) error {
		waiting, cancel := context.WithTimeout(ctx, foreignAfter)
		defer cancel()
		var s clusterinfo.Settings
		var published bool
		err := until(waiting, func() (waits, err error) {
			if s, published, err = clusterinfo.ReadSettings(ctx, kube); apierrors.IsForbidden(err) {
				return err, nil
			}
			return nil, err
		})
		if err != nil && !apierrors.IsForbidden(err) {
			return err
		}
		if !published {
			if s, err = clusterinfo.ReadKubelets(ctx, kube); err != nil {
				return err
			}
		}
		if err := checkRelease(version, s.Release); err != nil {
			return err
		}
		if s.PodNetwork == encryptedPodNetwork {
			if err := checkPodNetwork(s.PodNetwork); err != nil {
				return fmt.Errorf("this machine cannot join the cluster: %w", err)
			}
		}
		return saveSettings(settingsFile(root), s)
	}
}

func settingsFile(root string) string { return filepath.Join(credentialsDir(root), "settings.json") }

// settings returns the cluster's settings. If it does not answer, refuses to show them or has none
// any more, the node keeps those that it had: without settings it would stop its Service proxy and
// enforce no NetworkPolicies. Only a cluster that never had settings leaves a node with the
// defaults.
func (a *agent) settings(ctx context.Context, kube kubernetes.Interface) (clusterinfo.Settings, error) {
	file := settingsFile(a.root)
	last, known, ferr := lastSettings(file)
	waiting, cancel := context.WithTimeout(ctx, settingsLimit)
	defer cancel()
	var s clusterinfo.Settings
	var published bool
	err := until(waiting, func() (waits, err error) {
		asking, cancel := context.WithTimeout(waiting, callLimit)
		defer cancel()
		s, published, err = clusterinfo.ReadSettings(asking, kube)
		if apierrors.IsForbidden(err) && !known {
			return err, nil
		}
		return nil, err
	})
	had := last.Version != 0
	if foreign := !had && ferr == nil && (err == nil || known && apierrors.IsForbidden(err)); foreign && !published {
		asking, cancel := context.WithTimeout(waiting, callLimit)
		defer cancel()
		if s, err = clusterinfo.ReadKubelets(asking, kube); err == nil {
			published = true
		}
	}
	switch {
	case published:
		return s, saveSettings(file, s)
	case ferr != nil:
		return s, errors.Join(ferr, err)
	case err != nil && !known:
		return s, fmt.Errorf("the cluster at %s does not show its settings: %w", a.member.Server, err)
	case err == nil:
		err = fmt.Errorf("ConfigMap kube-system/%s does not exist any more", clusterinfo.AgentConfigMap)
	}
	a.log.Warn("the cluster's settings cannot be read: the node keeps those of before", "err", err)
	return last, nil
}

func saveSettings(file string, s clusterinfo.Settings) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return pki.Replace(file, append(data, '\n'), 0o600)
}

// lastSettings returns the settings that were saved, and whether any were. Their version is 0 if
// the cluster had none.
func lastSettings(file string) (s clusterinfo.Settings, known bool, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil && s.Version != 0 {
		err = s.CheckVersion()
	}
	if err != nil {
		return clusterinfo.Settings{}, false, fmt.Errorf("read the cluster's last settings in %s: %w", file, err)
	}
	return s, true, nil
}

// serverPort is the port in an API server's URL.
func serverPort(server string) (int, error) {
	u, err := url.Parse(server)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(u.Port())
}
