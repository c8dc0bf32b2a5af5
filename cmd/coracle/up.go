package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coracle-project/coracle/cmd/coracle/nodes"
	"github.com/coracle-project/coracle/internal/privatedir"
)

// upOptions are the flags of up, and what up.json remembers of them.
type upOptions struct {
	Config string `json:"config,omitempty"` // coracled's configuration file, "" for its default
	// ShortNames is the registry of images' names without one, unless the configuration file names
	// another; refuseShortNames for none.
	ShortNames string `json:"shortNames,omitempty"`
	// ClusterFile is the configuration file of the cluster, "" for the default one.
	ClusterFile string `json:"clusterFile,omitempty"`
	// FromFile are the settings that the configuration file of the cluster gave last. One that is
	// taken out of the file has its default again.
	FromFile []string `json:"fromFile,omitempty"`
	// Coracled is whether up has started the coracled that last ran, so that down --purge removes
	// what it has in --root.
	Coracled bool `json:"coracled"`
	// Restored names the restore of a snapshot whose settings these are, or were until others were
	// given.
	Restored string `json:"restored,omitempty"`
	// Boot is the boot in which it did, so that down ends it; "" after down.
	Boot string `json:"boot,omitempty"`

	// PodRanges are the networks that Nodes of this cluster have got ranges of, nil if none has. They
	// keep their ranges, also if the networks are others by now.
	PodRanges []string `json:"podRanges,omitempty"`

	// State is --state. Commands with the same --root and no --state use it.
	State string `json:"state,omitempty"`

	// Server is the API server of the cluster whose node this machine is, "" for a cluster of its
	// own. Port is the server's then.
	Server string `json:"server,omitempty"`

	Bind string `json:"bind"`
	Port int    `json:"port"`
	Node string `json:"node"`
	// KubeletPort is the kubelet's, 0 for the cluster process's default.
	KubeletPort int `json:"kubeletPort,omitempty"`
	// ServiceCIDR is the network of Services' addresses.
	ServiceCIDR string `json:"serviceCIDR,omitempty"`
	// LoadBalancerCIDR are ranges of addresses for Services of type LoadBalancer, in the words of
	// coracle-kube. LoadBalancerInterface is where the node answers for them.
	LoadBalancerCIDR      []string `json:"loadBalancerCIDR,omitempty"`
	LoadBalancerInterface string   `json:"loadBalancerInterface,omitempty"`
	// PodLogs is the directory of containers' logs, CgroupRoot the parent of pods' cgroups.
	PodLogs    string `json:"podLogs"`
	CgroupRoot string `json:"cgroupRoot"`

	NodeIPs []string `json:"nodeIPs,omitempty"`
	// Further is how many nodes of the cluster are on this machine besides the first, and NodeCIDRs
	// are the networks of the nodes' addresses; empty are the default ones.
	Further   furtherNodes `json:"furtherNodes,omitempty"`
	NodeCIDRs []string     `json:"nodeCIDRs,omitempty"`
	Etcd      []string     `json:"etcd,omitempty"`
	// EvictionHard are the kubelet's thresholds, in its own words; empty are its default ones.
	EvictionHard string `json:"evictionHard,omitempty"`
	// ClusterDomain, ClusterDNS, StubDomains and ResolvConf are the cluster process's flags of the
	// DNS; empty are its defaults.
	ClusterDomain string   `json:"clusterDomain,omitempty"`
	ClusterDNS    []string `json:"clusterDNS,omitempty"`
	StubDomains   []string `json:"stubDomains,omitempty"`
	ResolvConf    string   `json:"resolvConf,omitempty"`
	// PodCIDR are the networks of pods' addresses, and PodNetwork says how pods of other nodes are
	// reached; empty are the cluster process's defaults.
	PodCIDR    []string `json:"podCIDR,omitempty"`
	PodNetwork string   `json:"podNetwork,omitempty"`
	// BGPAS is the AS of this node, and BGPPeers are the routers that its routes are announced to, in
	// the words of coracle-bgp; none without peers.
	BGPAS    string   `json:"bgpAS,omitempty"`
	BGPPeers []string `json:"bgpPeers,omitempty"`
	// PoliciesOff leaves NetworkPolicies to a network plugin.
	PoliciesOff offFlag `json:"networkPoliciesOff,omitempty"`
	// EncryptionConfig, AuditPolicy, AuditLog, AuditWebhook and EtcdQuota are the cluster process's
	// flags about what is stored and recorded; empty are its defaults.
	EncryptionConfig string `json:"encryptionConfig,omitempty"`
	AuditPolicy      string `json:"auditPolicy,omitempty"`
	AuditLog         string `json:"auditLog,omitempty"`
	AuditWebhook     string `json:"auditWebhook,omitempty"`
	EtcdQuota        string `json:"etcdQuota,omitempty"`
	// SchedulerConfig is the file with the scheduler's profiles and extenders.
	SchedulerConfig string `json:"schedulerConfig,omitempty"`
	// AuthenticationConfig, TokenWebhook, TokenWebhookVersion and PodSecurity are the cluster
	// process's flags about who is let in, and what pods may be; empty are its defaults.
	AuthenticationConfig string `json:"authenticationConfig,omitempty"`
	TokenWebhook         string `json:"tokenWebhook,omitempty"`
	TokenWebhookVersion  string `json:"tokenWebhookVersion,omitempty"`
	PodSecurity          string `json:"podSecurity,omitempty"`
	// MonitorGrace and SigningDuration are the cluster process's flags about nodes that are silent,
	// and certificates; empty are its defaults.
	MonitorGrace    string `json:"monitorGrace,omitempty"`
	SigningDuration string `json:"signingDuration,omitempty"`
	// UnsafeSysctls are those that pods may set in addition to upstream's safe ones.
	UnsafeSysctls []string `json:"unsafeSysctls,omitempty"`
	// Images is the directory with archives of images that are loaded before pods start.
	Images string `json:"images,omitempty"`
	// Manifests is the directory whose manifests are applied, or nothing; empty is the default.
	Manifests string `json:"manifests,omitempty"`

	// EtcdPeerPort is the built-in etcd's for other control-plane nodes, 0 for the default.
	EtcdPeerPort int `json:"etcdPeerPort,omitempty"`

	apply   []string
	timeout time.Duration
	// joins is the cluster whose control plane this machine joins, with its certificate key.
	joins          joining
	certificateKey string
	// force has the cluster go on without its other control-plane nodes.
	force bool
}

func upCommand(p *place) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "start Kubernetes on this machine and wait until its node is Ready",
		Long: `up starts coracled, unless one already serves the socket in --state, and the cluster process. It creates
certificates and the administrator's kubeconfig, and waits until the node is Ready. Run it again to
start what does not run, and to renew certificates that expire within 30 days. With --pod-network cni it does
not wait for the network plugin, which may be what --apply names.

With --nodes, this machine gets further nodes for trying things that need several: each has network and
mount namespaces, coracled, agent, cgroups and directories of its own, and joins as another machine
would. Their names are that of the first with -2, -3 and so on; "coracle --node NAME COMMAND" is about one.

Flags are remembered until down --purge: a missing flag has its last value. They take effect when the
cluster is started. If they differ from those of a running cluster, up changes nothing and fails. An up
that fails before the node is Ready stops what it started, unless the cluster has other control-plane nodes, which may need this
one for a quorum. Pods that ran before keep running.

The file of --config has flags by their names: "port: 7443". Flags override it. A key that is taken out of it has
its default again. If the file has server, token and ca-hash, up makes this machine a node of that cluster, as join
does.`,
		Example: `  coracle up
  coracle up --apply deployment.yaml      # and wait until what it holds is available
  coracle up --nodes 3                    # three nodes on this machine
  coracle up --root /srv/coracle --state /run/coracle-two --port 7443 \
             --kubelet-port 10350 --service-cidr 10.112.0.0/16
  coracle up --bind-address 10.0.0.1      # so that other machines can join
  coracle up --join https://10.0.0.1:6443 --token … --ca-hash sha256:… --certificate-key …
  coracle up --join https://10.0.0.1:6443 --token-file token --ca-hash sha256:… --certificate-key-file - < key
  coracle up --load-balancer-cidr 192.168.1.240-192.168.1.250   # addresses of this machine's network
  coracle up --bgp-as 64512 --bgp-peer '10.0.0.254 as=64500 password-file=/etc/coracle/bgp-password'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			if err := readSecrets(cmd.Flags(), cmd.InOrStdin()); err != nil {
				return fmt.Errorf("up --join: %w", err)
			}
			return upByFile(ctx, *p, &o, cmd.Flags(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().AddFlagSet(upFlags(&o))
	cmd.Flags().StringVar(&o.joins.server, joinFlags[0], "", "`URL` of the cluster whose control plane this machine joins, https://HOST:PORT")
	cmd.Flags().StringVar(&o.joins.token, joinFlags[1], "", "with --join: `TOKEN` of the cluster, ID.SECRET")
	cmd.Flags().String("token-file", "", "with --join: `FILE` with the token; - for standard input")
	cmd.Flags().StringSliceVar(&o.joins.hashes, joinFlags[2], nil, "with --join: `HASH` of the cluster's authority, sha256:…")
	cmd.Flags().StringVar(&o.certificateKey, joinFlags[3], "", "with --join: `KEY` of the cluster's keys, once")
	cmd.Flags().String("certificate-key-file", "", "with --join: `FILE` with the key of the cluster's keys; - for standard input")
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
	cmd.MarkFlagsMutuallyExclusive("certificate-key", "certificate-key-file")
	cmd.Flags().BoolVar(&o.force, "force-new-cluster", false,
		"go on with this machine's data when the other control-plane nodes are gone for good; what only they have is lost")
	return cmd
}

// upFlags are the flags of up.
func upFlags(o *upOptions) *pflag.FlagSet {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	f := pflag.NewFlagSet("up", pflag.ContinueOnError)
	f.String("config", "", "`FILE` with settings, by the names of flags, which override it; '' for none (default: "+defaultClusterFile+
		", with another --root none)")
	f.StringVar(&o.Config, "runtime-config", "", "configuration `FILE` for coracled")
	f.StringVar(&o.ShortNames, "short-name-registry", "docker.io",
		"registry for image names without one, unless --runtime-config names one; "+refuseShortNames+" refuses such names")
	f.StringVar(&o.Bind, "bind-address", "127.0.0.1", "address that the API server serves on")
	f.IntVar(&o.Port, "port", 6443, "port that the API server serves on")
	f.IntVar(&o.KubeletPort, "kubelet-port", 0,
		"port of the kubelet's HTTPS API, another one for each cluster of this machine (default: 10250)")
	f.StringVar(&o.ServiceCIDR, "service-cidr", defaultServices, "network of Services' addresses; this machine must have no route to it")
	f.StringSliceVar(&o.PodCIDR, "pod-cidr", nil,
		"`NETWORKS` of pods' addresses, one of each family at most, of which each node gets a part if other machines can join, for as "+
			"long as the cluster exists (default: 10.85.0.0/16,fd85:c0ac:1e00::/48); none leaves the addresses to the nodes")
	f.StringVar(&o.PodNetwork, "pod-network", "",
		"how pods of other nodes are reached: auto (direct routes on a shared link, VXLAN elsewhere), wireguard, which encrypts all of it, "+
			"or none, if other routes lead there; cni leaves all pods to a network plugin, without which the nodes are not Ready (default: auto)")
	f.StringSliceVar(&o.LoadBalancerCIDR, "load-balancer-cidr", nil,
		"addresses for Services of type LoadBalancer, which this machine answers for: `RANGES` of its network such as 192.168.1.240/28 or "+
			"192.168.1.240-192.168.1.250 (default: the node's own addresses, which Services share by their ports); none leaves such Services to "+
			"others")
	f.StringVar(&o.LoadBalancerInterface, "load-balancer-interface", "",
		"`INTERFACE` to answer on for --load-balancer-cidr (default: the one whose network has the address)")
	f.StringVar(&o.BGPAS, "bgp-as", "", "`AS` of this node, for --bgp-peer")
	f.StringSliceVar(&o.BGPPeers, "bgp-peer", nil,
		"routers that this node's pods and load balancers' addresses are announced to by BGP: `PEER` such as '10.0.0.254 as=64500', with "+
			"port=PORT and password-file=FILE if needed; again for further ones (default: none)")
	f.Var(&o.Further, "nodes", fmt.Sprintf("how many nodes of the cluster run on this machine, up to %d", nodes.Most))
	f.StringSliceVar(&o.NodeCIDRs, "nodes-cidr", nil,
		"networks of their addresses, one of each family (default: "+strings.Join(defaultNodeNetworks, ",")+")")
	f.StringVar(&o.Node, "node-name", strings.ToLower(host), "name of this node")
	f.StringSliceVar(&o.NodeIPs, "node-ip", nil, "addresses of this node (default: that of its name or of the default route)")
	f.StringVar(&o.PodLogs, "pod-log-dir", "/var/log/pods", "directory for containers' logs")
	f.StringVar(&o.CgroupRoot, "cgroup-root", "/coracle-kube", "parent of the pods' cgroups; down removes it")
	f.StringSliceVar(&o.Etcd, "etcd-servers", nil, "URLs of an etcd cluster to use instead of the built-in one")
	f.StringVar(&o.ClusterDomain, "cluster-domain", "", "domain of Services' names (default: cluster.local)")
	f.StringSliceVar(&o.ClusterDNS, "cluster-dns", nil,
		"`ADDRESSES` of the cluster's DNS, or none (default: the tenth address of --service-cidr); outside of --service-cidr they are of a "+
			"DNS elsewhere")
	f.StringSliceVar(&o.StubDomains, "dns-stub-domain", nil,
		"name servers of a domain that the cluster's DNS asks instead of the node's: `DOMAIN=ADDRESS` such as corp.example=10.0.0.53; again "+
			"for further servers")
	f.StringVar(&o.ResolvConf, "resolv-conf", "", "`FILE` with the name servers for all other names (default: the node's)")
	f.Var(&o.PoliciesOff, "network-policies", "enforce NetworkPolicies for this node's pods; false if a network plugin does")
	f.Lookup("network-policies").NoOptDefVal = "true"
	f.StringVar(&o.EvictionHard, "eviction-hard", "",
		"when pods are evicted, `THRESHOLDS` such as memory.available<100Mi,nodefs.available<5% (default: upstream's)")
	f.StringSliceVar(&o.UnsafeSysctls, "allowed-unsafe-sysctls", nil,
		"sysctls that pods may set in addition to the safe ones: `NAMES` such as kernel.msgmax, or prefixes such as net.core.*")
	f.StringVar(&o.EncryptionConfig, "encryption-provider-config", "",
		"`FILE` with an EncryptionConfiguration: how objects are encrypted in etcd (default: not encrypted)")
	f.StringVar(&o.AuditPolicy, "audit-policy-file", "", "`FILE` with an audit Policy: which requests are recorded (default: none)")
	f.StringVar(&o.AuditLog, "audit-log-path", "", "`FILE` for the recorded requests")
	f.StringVar(&o.AuditWebhook, "audit-webhook-config-file", "", "kubeconfig `FILE` of a server that gets the recorded requests")
	f.StringVar(&o.EtcdQuota, "etcd-quota", "", "largest `SIZE` of the built-in etcd's database, such as 8Gi (default: 4Gi)")
	f.StringVar(&o.SchedulerConfig, "scheduler-config", "",
		"`FILE` with a KubeSchedulerConfiguration: profiles, plugins and extenders of the scheduler (default: upstream's defaults)")
	f.StringVar(&o.AuthenticationConfig, "authentication-config", "",
		"`FILE` with an AuthenticationConfiguration: issuers of tokens (OpenID Connect) (default: none)")
	f.StringVar(&o.TokenWebhook, "authentication-token-webhook-config-file", "", "kubeconfig `FILE` of a server that reviews tokens")
	f.StringVar(&o.TokenWebhookVersion, "authentication-token-webhook-version", "",
		"version of authentication.k8s.io for it: v1 or v1beta1 (default: v1beta1)")
	f.StringVar(&o.PodSecurity, "pod-security", "",
		"`LEVEL` of the Pod Security Standards in namespaces that name none: privileged, baseline or restricted (default: privileged)")
	o.lifetimeFlags(f)
	f.StringVar(&o.Images, "images", "/var/lib/coracle/preload", "`DIRECTORY` with archives of images that are loaded before pods start, or none")
	f.StringVar(&o.Manifests, "manifests", "",
		"`DIRECTORY` whose manifests are applied and kept, or none (default: "+defaultManifests+", with another --root none)")
	f.IntVar(&o.EtcdPeerPort, "etcd-peer-port", 0, "port of the built-in etcd for other control-plane nodes (default: 2380)")
	f.StringSliceVar(&o.apply, "apply", nil, "manifests to apply with kubectl once the node is Ready")
	f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "limit for the whole start")
	return f
}

func (o *upOptions) lifetimeFlags(f *pflag.FlagSet) {
	f.StringVar(&o.MonitorGrace, "node-monitor-grace-period", "",
		"how long a node may be silent before it counts as unreachable, a `DURATION` such as 30s (default: 50s)")
	f.StringVar(&o.SigningDuration, "cluster-signing-duration", "",
		"how long the certificates of nodes that join, and others that the cluster signs, are valid: a `DURATION` such as 720h (default: 8760h, a year)")
}

const defaultManifests = "/etc/coracle/manifests"

// manifests is the directory whose manifests are applied, or nothing.
func (o *upOptions) manifests(p place) string {
	switch {
	case o.Manifests != "":
		return o.Manifests
	case p.root != defaultRoot:
		return nothing
	}
	return defaultManifests
}

// nothing is the setting with which there are no manifests, or no images, of files.
const nothing = "none"

// refuseShortNames is the setting with which images' names have to name their registry.
const refuseShortNames = "none"

// upByFile is up with the settings of a file in addition to the flags. A file that names a cluster
// has the machine join that one first.
func upByFile(ctx context.Context, p place, o *upOptions, flags *pflag.FlagSet, out io.Writer) error {
	file, err := o.openClusterFile(p, flags)
	if err != nil {
		return fmt.Errorf("up: %w", err)
	}
	j, err := file.joins()
	if err != nil {
		return fmt.Errorf("up: %w", err)
	}
	if err := file.apply(flags, joinKeys...); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	o.FromFile = file.keys()
	if o.joins.server != "" {
		if j.server != "" {
			return fmt.Errorf("up --join: %s names the cluster at %s to join as a node: take that out of the file", file.path, j.server)
		}
		return joinControlPlane(ctx, p, *o, flags.Changed, out)
	}
	for _, flag := range joinFlags[1:] {
		if flags.Changed(flag) {
			return fmt.Errorf("up: --%s goes with --join: 'coracle token create --control-plane' on the first machine prints the whole command", flag)
		}
	}
	if j.server == "" {
		return up(ctx, p, *o, flags.Changed, out)
	}
	if last := remembered(p); p.joined() && last.Server == j.server {
		return up(ctx, p, *o, flags.Changed, out)
	}
	for _, name := range append(slices.Sorted(maps.Keys(o.settings())), "apply") {
		if flags.Changed(name) && !slices.Contains(agentFlags, name) {
			return fmt.Errorf("up: %s names the cluster at %s to join, and --%s is for a cluster of this machine's own", file.path, j.server, name)
		}
	}
	return join(ctx, p, *o, j, flags.Changed, out)
}

func up(ctx context.Context, p place, o upOptions, given func(flag string) bool, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("up: only root may make namespaces, mounts and networks: use sudo")
	}
	limit, cancel := withTimeLimit(ctx, o.timeout)
	defer cancel()
	ctx = limit
	if err := o.absolutePaths(); err != nil {
		return err
	}
	last := remembered(p)
	o.follow(last, given)
	if err := o.check(); err != nil {
		return err
	}
	for _, dir := range []string{p.root, p.state} {
		// coracled does so too, but one that runs may have been started before they were opened.
		if err := privatedir.Make(dir); err != nil {
			return err
		}
	}
	steps := newSteps(out)
	release, err := p.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	last = remembered(p) // of an up that was quicker
	u := upRun{place: p, o: &o, last: last, limit: limit}
	differ := o.follow(last, given)
	if o.Server != "" {
		if !p.joined() {
			return fmt.Errorf("up: joining the cluster at %s was cut off: repeat 'coracle join', or forget it with 'coracle leave --force%s'",
				o.Server, p.flags())
		}
		if err := o.checkAgent(differ); err != nil {
			return err
		}
	}
	if err := u.look(ctx, differ); err != nil {
		return err
	}
	if o.Server != "" {
		return u.upAgent(ctx, given, steps)
	}
	if o.force {
		if err := kubeTool(ctx, nil, "controlplane", "force", "--root", p.kubeRoot(), "--port", strconv.Itoa(o.Port)); err != nil {
			return errors.Join(fmt.Errorf("up --force-new-cluster: %w", err), u.unforce(ctx))
		}
	}
	if err := u.start(ctx, given, steps); err != nil {
		return errors.Join(err, u.unforce(ctx))
	}
	release() // a node that does not become ready can be taken down
	return u.awaitReady(ctx, steps)
}

// moved says that no cluster runs, and that the last one had another port.
func (u *upRun) moved() bool {
	return u.supervisor == 0 && u.last.Port != 0 && u.last.Port != u.o.Port
}

// start starts coracled and the cluster process where they do not run, and returns when both
// answer. A failure ends what it has started.
func (u *upRun) start(ctx context.Context, given func(flag string) bool, steps *steps) error {
	// What the last cluster announced is the new one's to announce: a pool is refused that is in
	// use.
	if u.moved() {
		if err := removeAnnouncements(ctx, u.last.bind(), u.last.Port); err != nil {
			return err
		}
	}
	if err := errors.Join(u.checkServiceRange(), u.checkPodRanges()); err != nil {
		return err
	}
	if err := u.makeNodes(); err != nil {
		return u.fail(ctx, err)
	}
	// The API server's address has to be there by now.
	if err := u.checkPrograms(ctx, given); err != nil {
		return u.fail(ctx, err)
	}
	if u.supervisor == 0 {
		u.since = time.Now()
	}
	if err := u.startRuntime(ctx, steps); err != nil {
		return u.fail(ctx, err)
	}
	if err := u.upCluster(ctx); err != nil {
		return u.fail(ctx, err)
	}
	var err error
	if u.started, err = holder(u.place.supervisor()); err != nil {
		return u.fail(ctx, err)
	}
	return nil
}

// awaitReady returns when the node is Ready and the manifests are applied.
func (u *upRun) awaitReady(ctx context.Context, steps *steps) error {
	p := u.place
	client, err := openAPI(p.kubeconfig())
	if err != nil {
		return u.failLate(ctx, err)
	}
	defer client.http.CloseIdleConnections()
	steps.done("API server is ready on " + client.server)
	if u.moved() {
		if err := errors.Join(removeRules(u.last.bind(), u.last.Port), removePaths(ctx, u.last.bind(), u.last.Port)); err != nil {
			return u.failLate(ctx, err)
		}
	}
	waits, err := client.awaitNode(ctx, u.o.Node, u.since)
	if err != nil {
		return u.failLate(ctx, fmt.Errorf("%w; %s may tell why", err, p.kubeLog()))
	}
	steps.node(u.o.Node, "Ready", waits)
	if err := u.upNodes(ctx, client, steps); err != nil {
		return fmt.Errorf("up: %w\nthe cluster runs: 'coracle up%s' tries again, and 'coracle down%[2]s' ends them", err, p.flags())
	}
	tellParts(ctx, p, steps)
	for _, manifest := range u.o.apply {
		if err := client.apply(ctx, p, manifest, steps.waits); err != nil {
			return fmt.Errorf("up: the cluster runs, but --apply failed: 'coracle up%s --apply %s' repeats it: %w", p.flags(), manifest, err)
		}
		steps.done(manifest + " is applied and available")
	}
	return nil
}

// startRuntime starts coracled where it does not run, and has images loaded. Without any to load,
// the cluster process starts meanwhile.
func (u *upRun) startRuntime(ctx context.Context, steps *steps) error {
	meanwhile := u.launchCluster
	if u.archives() {
		meanwhile = func() error { return nil }
	}
	if err := u.upCoracled(ctx, meanwhile); err != nil {
		return err
	}
	steps.done("coracled serves " + u.socket())
	return u.preload(ctx, steps)
}

// coracledArgs are what coracled is started with.
func coracledArgs(p place, o upOptions) []string {
	args := []string{
		"--root", p.root, "--state", p.state, "--address", "unix://" + p.socket(), "--log-file", p.coracledLog(),
		"--only-listed-loopback",
	}
	if o.Config != "" {
		args = append(args, "--config", o.Config)
	}
	if o.ShortNames != "" && o.ShortNames != refuseShortNames {
		args = append(args, "--short-name-registry", o.ShortNames)
	}
	return args
}

// kubeArgs are what the cluster process is started with.
func kubeArgs(p place, o upOptions) []string {
	if o.Server != "" {
		return agentArgs(p, o)
	}
	args := []string{
		"server", "--root", p.kubeRoot(), "--state", p.kubeState(),
		"--bind-address", o.bind(), "--port", strconv.Itoa(o.Port), "--service-cidr", o.ServiceCIDR, "--node-name", o.Node, "--cri",
		"unix://" + p.socket(),
		"--kubeconfig-out", p.kubeconfig(), "--pod-log-dir", o.PodLogs, "--cgroup-root", o.CgroupRoot,
	}
	if ips := o.nodeIPs(); len(ips) > 0 {
		args = append(args, "--node-ip", strings.Join(ips, ","))
	}
	if len(o.Etcd) > 0 {
		args = append(args, "--etcd-servers", strings.Join(o.Etcd, ","))
	}
	if o.KubeletPort != 0 {
		args = append(args, "--kubelet-port", strconv.Itoa(o.KubeletPort))
	}
	if o.EtcdPeerPort != 0 {
		args = append(args, "--etcd-peer-port", strconv.Itoa(o.EtcdPeerPort))
	}
	for _, further := range [][2]string{
		{"--eviction-hard", o.EvictionHard},
		{"--pod-cidr", strings.Join(o.PodCIDR, ",")},
		{"--pod-network", o.PodNetwork},
		{"--load-balancer-cidr", strings.Join(o.LoadBalancerCIDR, ",")},
		{"--load-balancer-interface", o.LoadBalancerInterface},
		{"--allowed-unsafe-sysctls", strings.Join(o.UnsafeSysctls, ",")},
		{"--cluster-domain", o.ClusterDomain},
		{"--cluster-dns", strings.Join(o.ClusterDNS, ",")},
		{"--dns-stub-domain", strings.Join(o.StubDomains, ",")},
		{"--resolv-conf", o.ResolvConf},
		{"--encryption-provider-config", o.EncryptionConfig},
		{"--audit-policy-file", o.AuditPolicy},
		{"--audit-log-path", o.AuditLog},
		{"--audit-webhook-config-file", o.AuditWebhook},
		{"--etcd-quota", o.EtcdQuota},
		{"--scheduler-config", o.SchedulerConfig},
		{"--authentication-config", o.AuthenticationConfig},
		{"--authentication-token-webhook-config-file", o.TokenWebhook},
		{"--authentication-token-webhook-version", o.TokenWebhookVersion},
		{"--pod-security", o.PodSecurity},
		{"--node-monitor-grace-period", o.MonitorGrace},
		{"--cluster-signing-duration", o.SigningDuration},
	} {
		if further[1] != "" {
			args = append(args, further[0], further[1])
		}
	}
	if dir := o.manifests(p); dir != nothing {
		args = append(args, "--manifests", dir)
	}
	if o.PoliciesOff {
		args = append(args, "--network-policies=false")
	}
	return append(args, bgpRoutesArgs(p, o)...)
}

// orOther is for a program of ours that ended with err because another process holds lock, and does
// what it was to do: it awaits that one, for as long as that holds the lock. Without another, err
// is what went wrong.
func orOther(ctx context.Context, err error, lock, what, log string, answers func(context.Context) error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	other := await(ctx, what, log, nil, func(try context.Context) error {
		if pid, herr := holder(lock); herr != nil || pid == 0 {
			giveUp()
			return err
		}
		return answers(try)
	})
	if other != nil {
		return err
	}
	return nil
}

// upCluster starts the cluster process under its supervisor if it does not run, and returns when
// the API server answers.
func (u *upRun) upCluster(ctx context.Context) error {
	p := u.place
	answers := func(ctx context.Context) error {
		client, err := openAPI(p.kubeconfig())
		if err != nil {
			return err
		}
		defer client.http.CloseIdleConnections()
		return client.ready(ctx)
	}
	if err := u.launchCluster(); err != nil {
		return err
	}
	err := await(ctx, "the API server", p.kubeLog(), u.cluster, answers)
	if u.cluster == nil {
		return err
	}
	return orOther(ctx, err, p.supervisor(), "the API server", p.kubeLog(), answers)
}

// launchCluster starts the cluster's supervisor, unless one runs or this up has started one.
func (u *upRun) launchCluster() error {
	switch {
	case u.gate != nil:
		u.gate.open()
		u.gate = nil
		return nil
	case u.cluster != nil:
		return nil
	}
	return u.launchSupervisor(nil)
}

// launchSupervisor starts the cluster's supervisor, unless one runs. Its program waits at g.
func (u *upRun) launchSupervisor(g *gate) error {
	p := u.place
	if pid, err := holder(p.supervisor()); err != nil || pid != 0 {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := sibling("coracle-kube")
	if err != nil {
		return err
	}
	args := []string{"supervise", "--root", p.root, "--state", p.state, "--log", p.kubeLog(), "--log", p.bgpLog()}
	if g != nil {
		args = append(args, "--gate")
	}
	args = append(args, "--", program)
	args = append(args, kubeArgs(p, *u.o)...)
	if len(u.o.BGPPeers) > 0 {
		if err := os.MkdirAll(p.bgp(), 0o755); err != nil { // the cluster process may be quicker than coracle-bgp
			return err
		}
		speaker, err := sibling(bgpProgram)
		if err != nil {
			return err
		}
		args = append(append(args, "--", speaker), bgpArgs(p, *u.o)...)
	}
	cmd, err := launchWith(g, p.kubeLog(), self, args...)
	if err != nil {
		return err
	}
	u.cluster = cmd
	return nil
}

// longestTry is how long an answer is waited for: who listens there may be another, who says
// nothing.
const longestTry = 2 * time.Second

// await returns when answers does not fail any more, or fails with otherRelease. If cmd ends
// before, or ctx does, the error says so and quotes the end of the log.
func await(ctx context.Context, what, log string, cmd *exec.Cmd, answers func(context.Context) error) error {
	var ended <-chan struct{}
	var end func() error
	if cmd != nil {
		ended, end = exit(cmd)
	}
	for {
		try, cancel := context.WithTimeout(ctx, longestTry)
		err := answers(try)
		cancel()
		if other := (otherRelease{}); err == nil || errors.As(err, &other) {
			return err
		}
		select {
		case <-ended:
			err := fmt.Errorf("%s ended as soon as it had been started: %s; see %s", what, reason(log), log)
			if code(end()) == exitForGood {
				return forGood{err}
			}
			return err
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w; see %s, which ends with: %s", what, err, log, reason(log))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// reason is the line of a log, among the last, that says best what went wrong: the last that a
// program of ours ended with, or else the last of all.
func reason(log string) string {
	lines := strings.Split(tail(log), "\n")
	for _, line := range slices.Backward(lines) {
		for _, program := range []string{"coracle-kube: ", "coracled: "} {
			if said, ok := strings.CutPrefix(line, program); ok {
				return said
			}
		}
	}
	return lines[len(lines)-1]
}

// tail is the last lines of a log.
func tail(path string) string {
	const most = 2048
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(size-most, 0), io.SeekStart)
	}
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data))
}

// bootID names the time since the machine was started.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
