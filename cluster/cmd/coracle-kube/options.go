package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericapiserver "k8s.io/apiserver/pkg/server"
	metrics "k8s.io/metrics/pkg/apis/metrics/install"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/apiserver/snapshot"
	"github.com/coracle-project/coracle/cluster/controllers/upstream"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/kubelet"
	"github.com/coracle-project/coracle/cluster/kubelet/eviction"
	"github.com/coracle-project/coracle/cluster/kubelet/logrotate"
	"github.com/coracle-project/coracle/cluster/kubelet/sysctls"
	"github.com/coracle-project/coracle/cluster/metricsapi"
	"github.com/coracle-project/coracle/cluster/node/controlplane"
	"github.com/coracle-project/coracle/cluster/nodeaddr"
	"github.com/coracle-project/coracle/cluster/pki"
	"github.com/coracle-project/coracle/cluster/unserved"
)

// apiOptions are the flags of the API server.
type apiOptions struct {
	log *slog.Logger
	// pods are those of this machine if it is a node: they are to reach the API server on loopback,
	// too.
	pods *nodeaddr.Pods
	// clusterDomain is the node's flag.
	clusterDomain string

	root, state       string
	bind              string
	port              int
	serviceCIDR       string
	podCIDR           []string
	tokenFile         string
	kubeconfigOut     string
	etcdServers       []string
	etcdCA            string
	etcdCert, etcdKey string
	proxy             bool
	externalIPs       bool
	podsHealth        *health.Part // nil unless pods is set
	storeHealth       *health.Part // nil unless a board shows it, as the next
	encryptionHealth  *health.Part
	protect           protection
	access            access
	lifetimes         lifetimes
	policies          bool
	unserved          unserved.Kinds // nil but for what serve finds to be left to others
	scheduler         string         // file with the scheduler's configuration
	processors        *processors    // nil if they are not adapted to what is to do
	balancers         balancerOptions
	peerPort          int // of etcd's other members
	// several is whether there may be other API servers of the cluster, which its start has found.
	several               bool
	takePeers, leavePeers func() error // nil if it cannot
	membersHealth         *health.Part // nil without peers
}

func (o *apiOptions) define(f *pflag.FlagSet) {
	f.StringVar(&o.root, "root", "/var/lib/coracle/kube", "directory for what outlives a reboot")
	f.StringVar(&o.state, "state", "/run/coracle", "directory for what a reboot may lose")
	f.StringVar(&o.bind, "bind-address", "127.0.0.1", "address to serve the API on")
	f.IntVar(&o.port, "port", 6443, "port to serve the API on")
	f.StringVar(&o.serviceCIDR, "service-cidr", "10.96.0.0/16",
		"`NETWORKS` of Services' addresses, one of each family at most; the first is for Services that do not say")
	f.StringSliceVar(&o.podCIDR, "pod-cidr", []string{"10.85.0.0/16", "fd85:c0ac:1e00::/48"},
		"networks of pods' addresses, one of each family at most, of which each node gets a part if other machines can join; none leaves the "+
			"addresses to the nodes")
	f.StringVar(&o.tokenFile, "token-file", "", "CSV file of static tokens: token,user,uid,\"group,group\"")
	f.StringVar(&o.kubeconfigOut, "kubeconfig-out", "", "where to write the administrator's kubeconfig, too")
	f.StringSliceVar(&o.etcdServers, "etcd-servers", nil, "URLs of an etcd cluster to use instead of the built-in one")
	f.StringVar(&o.etcdCA, "etcd-ca", "", "file with the CA of --etcd-servers")
	f.StringVar(&o.etcdCert, "etcd-cert", "", "file with the client certificate for --etcd-servers")
	f.StringVar(&o.etcdKey, "etcd-key", "", "file with the key of --etcd-cert")
	f.IntVar(&o.peerPort, "etcd-peer-port", 2380, "port of the built-in etcd for other control-plane nodes, open when there are any")
	o.protect.define(f)
	o.access.define(f)
}

// url is where clients on this machine reach the API.
func (o *apiOptions) url() string {
	host := o.bind
	if ip, err := netip.ParseAddr(o.bind); err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(o.port))
}

// finishInterrupted takes back a join that was cut off, and finishes or takes back a restore of a
// snapshot that was, before anything reads what it replaces.
func (o *apiOptions) finishInterrupted() error {
	if err := controlplane.Forget(o.root); err != nil {
		return err
	}
	if len(o.etcdServers) > 0 {
		return nil
	}
	return snapshot.Recover(o.root)
}

// hosts are the names and addresses under which the API server is called.
func (o *apiOptions) hosts(node string, ips []string) ([]string, error) {
	hosts, err := o.settings().Hosts()
	return append(append(hosts, "::1", node), ips...), err
}

// credentials makes the cluster's credentials good.
func (o *apiOptions) credentials(node string, ips []string) (*pki.Bundle, error) {
	hosts, err := o.hosts(node, ips)
	if err != nil {
		return nil, err
	}
	peers, err := o.peers()
	if err != nil {
		return nil, err
	}
	if err := o.checkShared(peers); err != nil {
		return nil, err
	}
	bundle, err := pki.Ensure(filepath.Join(o.root, "pki"), o.url(), hosts, o.log)
	if err == nil {
		err = o.peerCredentials(bundle, peers)
	}
	if err != nil || o.kubeconfigOut == "" {
		return bundle, err
	}
	return bundle, bundle.Kubeconfig(o.kubeconfigOut, "kubernetes-admin", "system:masters")
}

// check says what is wrong with the flags, if anything, that the API server would not say.
func (o *apiOptions) check() error {
	if err := apiserver.CheckListenPort(o.port); err != nil {
		return fmt.Errorf("--port %w", err)
	}
	if err := apiserver.CheckListenPort(o.peerPort); err != nil {
		return fmt.Errorf("--etcd-peer-port %w", err)
	}
	pods, err := o.podRanges()
	return errors.Join(err, o.balancers.check(o.services(), pods.Pods), o.protect.check(len(o.etcdServers) > 0), o.access.check())
}

// noPodCIDR as the only network leaves the addresses of pods to the nodes.
const noPodCIDR = "none"

// podRanges are the networks that nodes get for their pods. A server that only this machine reaches
// has no other node: what its runtime has by itself is good enough, and there is nothing to wait
// for.
func (o *apiOptions) podRanges() (upstream.PodRanges, error) {
	if slices.Equal(o.podCIDR, []string{noPodCIDR}) {
		return upstream.PodRanges{}, nil
	}
	pods, err := networks("--pod-cidr", o.podCIDR)
	if err != nil || o.settings().URL() == "" {
		return upstream.PodRanges{}, err
	}
	r := upstream.PodRanges{Pods: pods, Services: o.services()}
	if err := r.Check(); err != nil {
		return upstream.PodRanges{}, fmt.Errorf("--pod-cidr: %w", err)
	}
	return r, nil
}

// services are the networks of Services, none if the flag is wrong: the API server says what is
// wrong with it.
func (o *apiOptions) services() []netip.Prefix {
	all, _ := apiserver.ServiceNetworks(o.serviceCIDR)
	return all
}

// settings are the flags that say where the API server is and keeps things.
func (o *apiOptions) settings() apiserver.Options {
	return apiserver.Options{
		Root: o.root, State: filepath.Join(o.state, "kube"), BindAddress: o.bind, Port: o.port,
		ServiceCIDR: o.serviceCIDR, TokenFile: o.tokenFile, HoldServiceAddress: o.pods != nil, Pods: o.pods, PodsHealth: o.podsHealth,
		ClusterDomain: o.clusterDomain,
		EtcdServers:   o.etcdServers, EtcdCA: o.etcdCA, EtcdCert: o.etcdCert, EtcdKey: o.etcdKey,
		EtcdQuota: o.protect.quota, StoreHealth: o.storeHealth,
		EncryptionConfig: o.protect.encryption, EncryptionHealth: o.encryptionHealth, Audit: o.protect.audit, Version: version,
		Unserved: o.unserved, Several: o.several, TakePeers: o.takePeers, LeavePeers: o.leavePeers, MembersHealth: o.membersHealth,
		Authentication: o.access.authentication, PodSecurity: o.access.podSecurity, SharedFiles: o.sharedFiles(),
		Concurrent: o.processors.useAll, Log: o.log,
	}
}

// sharedFiles are the files that all control-plane nodes have to agree on.
func (o *apiOptions) sharedFiles() apiserver.SharedFiles {
	all := apiserver.SharedFiles{
		"encryption-provider-config": o.protect.encryption, "audit-policy-file": o.protect.audit.PolicyFile,
		"audit-webhook-config-file": o.protect.audit.WebhookConfig, "scheduler-config": o.scheduler,
		"authentication-config": o.access.authentication.Config, "authentication-token-webhook-config-file": o.access.authentication.TokenWebhook,
	}
	maps.DeleteFunc(all, func(_, path string) bool { return path == "" })
	return all
}

// server makes the API server, with metrics.k8s.io, which is computed from what kubelets tell.
func (o *apiOptions) server(bundle *pki.Bundle) (*apiserver.Server, error) {
	var server *apiserver.Server
	settings := o.settings()
	settings.PKI = bundle
	scheme := runtime.NewScheme()
	metrics.Install(scheme)
	settings.ExtraSchemes = []*runtime.Scheme{scheme}
	settings.ExtraAPIGroups = append(settings.ExtraAPIGroups, func(g *genericapiserver.GenericAPIServer) error {
		core := server.Informers().Core().V1()
		// Not through the API server's own proxy, which refuses nodes with a loopback address.
		kubelets, err := metricsapi.Kubelets(core.Nodes().Lister(), apiserver.KubeletClient(bundle))
		if err != nil {
			return err
		}
		return metricsapi.Install(g, metricsapi.NewSampler(kubelets, core.Nodes().Lister(), core.Pods().Lister(), settings.Log))
	})
	server, err := apiserver.New(settings)
	return server, err
}

// nodeOptions are the flags of the kubelet.
type nodeOptions struct {
	log *slog.Logger

	name       string
	ips        []string
	cri        string
	staticPods string
	cgroupRoot string
	podLogs    string
	maxPods    int
	port       int
	eviction   eviction.Policy
	logs       logrotate.Policy
	podPIDs    int64
	sysctls    []string
	seccomp    bool
	dns        []string
	domain     string
	resolvConf string
	podNetwork string
	// bgpDir is where coracle-bgp reads what to announce, "" if it does not run.
	bgpDir string
	// pods are told of the addresses of this node's pods; nil for no one.
	pods *nodeaddr.Pods
}

func (o *nodeOptions) define(f *pflag.FlagSet) {
	f.StringVar(&o.name, "node-name", hostname(), "name of this node")
	f.StringSliceVar(&o.ips, "node-ip", nil, "addresses of this node (default: that of its name or of the default route)")
	f.StringVar(&o.cri, "cri", "unix:///run/coracle/coracle.sock", "socket of the container runtime")
	f.StringVar(&o.staticPods, "static-pod-dir", "", "directory with manifests of pods that run without the API")
	f.StringVar(&o.cgroupRoot, "cgroup-root", "/", "cgroup below which pods' cgroups are made")
	f.StringVar(&o.podLogs, "pod-log-dir", "/var/log/pods", "directory for containers' logs")
	f.IntVar(&o.maxPods, "max-pods", 110, "how many pods this node takes")
	f.IntVar(&o.port, "kubelet-port", 10250, "port of the kubelet's HTTPS API")
	f.Int64Var(&o.podPIDs, "pod-max-pids", 4096, "how many processes and threads a pod may have; -1 for any number")
	f.StringSliceVar(&o.sysctls, "allowed-unsafe-sysctls", nil,
		"sysctls that pods may set in addition to the safe ones: `NAMES` such as kernel.msgmax, or prefixes such as net.core.*")
	f.BoolVar(&o.seccomp, "seccomp-default", true, "whether containers that name no seccomp profile have the runtime's")
	f.StringVar(&o.podNetwork, "pod-network", autoPodNetwork,
		"how pods of other nodes are reached, where the cluster gives nodes networks for pods: auto (direct routes on a shared link, VXLAN "+
			"elsewhere), wireguard, which encrypts all of it, none, if other routes lead there, or cni, if a network plugin connects all "+
			"pods")
	f.StringVar(&o.bgpDir, "bgp-dir", "", "`DIRECTORY` for the routes of this node that coracle-bgp announces (default: none)")
	o.defineDNS(f)
	f.IntVar(&o.logs.MaxFiles, "container-log-max-files", 5, "how many log files a container may have, at least 2")
	o.logs.MaxSize = 10 << 20
	f.Func("container-log-max-size",
		"the `SIZE` at which a container's log is continued in another file (default 10Mi); negative for any size", func(text string) error {
			size, err := resource.ParseQuantity(text)
			if err == nil && size.IsZero() {
				err = errors.New("logs need some space; -1 is without a limit")
			}
			o.logs.MaxSize = size.Value()
			return err
		})
	f.Func("eviction-hard", "when pods are evicted, `THRESHOLDS` such as memory.available<100Mi,nodefs.available<5% (default: upstream's)",
		func(text string) (err error) {
			o.eviction.Hard, err = eviction.ParseHard(text)
			return err
		})
}

// kubeletRoot is where the kubelet keeps pods' volumes.
func kubeletRoot(root string) string { return filepath.Join(root, "kubelet") }

// kubelet translates; services are the networks of Services, none if this process does not serve
// them.
func (o *nodeOptions) kubelet(root string, services []netip.Prefix) kubelet.Options {
	var dns []string
	addrs, _ := o.clusterDNS(services) // check has said what is wrong
	for _, addr := range addrs {
		dns = append(dns, addr.String())
	}
	var networks []kubelet.Network
	if o.pods != nil {
		networks = append(networks, heldAddresses{o.pods})
	}
	return kubelet.Options{
		ClusterDNS: dns, ClusterDomain: o.domain, ResolvConf: o.resolvConf, Networks: networks,
		NodeName: o.name, NodeIPs: o.ips, Endpoint: o.cri, RootDir: kubeletRoot(root),
		LogDir: o.podLogs, StaticPodDir: o.staticPods, CgroupRoot: o.cgroupRoot, MaxPods: o.maxPods, Port: o.port,
		Eviction: o.eviction, Logs: o.logs, PodPIDs: o.podPIDs, AllowedUnsafeSysctls: o.sysctls, SeccompUnconfined: !o.seccomp,
	}
}

// heldAddresses lets pods reach those addresses of the node that only pods reach.
type heldAddresses struct{ pods *nodeaddr.Pods }

func (h heldAddresses) Admit(_ context.Context, pod *corev1.Pod, addresses []netip.Addr) error {
	h.pods.Set(string(pod.UID), addresses)
	return nil
}

func (h heldAddresses) Gone(uid types.UID) { h.pods.Set(string(uid), nil) }

// check says what is wrong with the flags, if anything.
func (o *nodeOptions) check() error {
	for _, ip := range o.ips {
		if _, err := netip.ParseAddr(ip); err != nil {
			return fmt.Errorf("--node-ip %q is no IP address, such as 10.0.0.1", ip)
		}
	}
	if !strings.HasPrefix(o.cri, "unix:///") {
		return fmt.Errorf("--cri %q is no socket, such as unix:///run/coracle/coracle.sock", o.cri)
	}
	if err := apiserver.CheckListenPort(o.port); err != nil {
		return fmt.Errorf("--kubelet-port %w", err)
	}
	if o.maxPods < 1 {
		return fmt.Errorf("--max-pods %d is no number of pods above 0", o.maxPods)
	}
	if o.podPIDs == 0 {
		return errors.New("--pod-max-pids 0 leaves no pod a process; -1 is without a limit")
	}
	if _, err := sysctls.New(o.sysctls); err != nil {
		return fmt.Errorf("--allowed-unsafe-sysctls: %w", err)
	}
	if err := checkPodNetwork(o.podNetwork); err != nil {
		return err
	}
	if err := o.checkDNS(); err != nil {
		return err
	}
	if err := o.logs.Check(); err != nil {
		return fmt.Errorf("--container-log-max-files: %w", err)
	}
	if o.bgpDir != "" && !filepath.IsAbs(o.bgpDir) {
		return fmt.Errorf("--bgp-dir %q is no absolute path", o.bgpDir)
	}
	if o.staticPods == "" {
		return nil
	}
	info, err := os.Stat(o.staticPods)
	if err != nil {
		return fmt.Errorf("--static-pod-dir: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("--static-pod-dir %s is no directory", o.staticPods)
	}
	return nil
}
