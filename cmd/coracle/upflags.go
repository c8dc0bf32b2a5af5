package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/coracle-project/coracle/cmd/coracle/nodes"
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
	// ServiceCIDR is the network of Services' addresses, or one of each family: serviceNetworks.
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
	f.StringVar(&o.ServiceCIDR, "service-cidr", defaultServices,
		"`NETWORKS` of Services' addresses, one of each family at most, of which the first is for Services that do not say; this machine "+
			"must have no route to them")
	f.StringSliceVar(&o.PodCIDR, "pod-cidr", nil,
		"`NETWORKS` of pods' addresses, one of each family at most, of which each node gets a part if other machines can join, for as "+
			"long as the cluster exists (default: 10.85.0.0/16,fd85:c0ac:1e00::/48); none leaves the addresses to the nodes")
	f.StringVar(&o.PodNetwork, "pod-network", "",
		"how pods of other nodes are reached: auto (direct routes on a shared link, VXLAN elsewhere), wireguard, which encrypts all of it, "+
			"or none, if other routes lead there; cni leaves all pods to a network plugin, without which the nodes are not Ready (default: auto)")
	f.StringSliceVar(&o.LoadBalancerCIDR, "load-balancer-cidr", nil,
		"addresses for Services of type LoadBalancer, which one of the nodes answers for: `RANGES` of its network such as 192.168.1.240/28 or "+
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
