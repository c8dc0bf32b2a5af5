package kubelet

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/dns/resolvconf"
	"github.com/coracle-project/coracle/cluster/kubelet/eviction"
	"github.com/coracle-project/coracle/cluster/kubelet/images"
	"github.com/coracle-project/coracle/cluster/kubelet/logrotate"
)

// Options say what node a kubelet runs and where it keeps things. Empty fields take the defaults
// that are written next to them.
type Options struct {
	// NodeName is the node's name; required.
	NodeName string
	// NodeIPs are the node's addresses, the preferred family first (the address of NodeName, or of
	// the interface with the default route).
	NodeIPs []string
	// Labels and Taints of the node when it is registered.
	Labels map[string]string
	Taints []v1.Taint
	// MaxPods on the node (110).
	MaxPods int
	// AwaitPodRanges is set where a controller gives each node networks for its pods: the node is
	// not ready, and runs no pod with an address of its own, before the runtime was told of them.
	AwaitPodRanges bool
	// PluginNetwork is set where a network plugin connects pods, and the runtime's own network does
	// not: the node is not ready, and runs no pod with an address of its own, before there is a CNI
	// configuration.
	PluginNetwork bool

	// Endpoint is the runtime's CRI socket; required ("unix:///run/coracle/coracle.sock").
	Endpoint string
	// RootDir holds pods' volumes and the like (/var/lib/kubelet).
	RootDir string
	// LogDir holds pods' logs (/var/log/pods), LegacyLogDir links to them by container, which log
	// collectors read (a directory containers next to LogDir).
	LogDir, LegacyLogDir string
	// StaticPodDir holds manifests of pods that run without an API; empty for none.
	StaticPodDir string
	// CgroupRoot is the cgroup below which pods' cgroups are made (/).
	CgroupRoot string

	// Address and Port of the kubelet's HTTPS API (all addresses, 10250). A negative port serves
	// none.
	Address string
	Port    int
	// ReservedPorts are TCP ports of the node that no pod gets as a host port, with the names of
	// their services: a pod could otherwise take the port of a service that is down for a moment.
	// The kubelet's own port is always one.
	ReservedPorts map[int]string
	// CertFile and KeyFile are its certificate and key, read again when they change; without them
	// it makes a certificate of its own that no one vouches for.
	CertFile, KeyFile string
	// Serving returns its certificate instead of these, nil while it has none: then it cannot be
	// reached.
	Serving func() *tls.Certificate
	// ClientCAFile names those whose client certificates are believed; without it only tokens are.
	ClientCAFile string

	// ClusterDNS are the name servers of pods with the policy ClusterFirst.
	ClusterDNS []string
	// ClusterDomain is the domain of services (cluster.local).
	ClusterDomain string
	// ResolvConf is the node's resolver configuration (resolvconf.Path).
	ResolvConf string

	// ImageGC says when unused images are removed (images.DefaultGCPolicy).
	ImageGC images.GCPolicy
	// Eviction says when pods are ended because the node runs short of memory or disk (upstream's
	// thresholds).
	Eviction eviction.Policy
	// Logs bounds containers' logs (upstream's: 10 MiB, 5 files).
	Logs logrotate.Policy
	// PodPIDs is how many processes and threads a pod may have (4096); negative for any number.
	PodPIDs int64
	// AllowedUnsafeSysctls are names of sysctls, or prefixes ending in *, that pods may set in
	// addition to the safe ones.
	AllowedUnsafeSysctls []string
	// SeccompUnconfined leaves containers without a seccomp profile of their own without any; else
	// they have the runtime's.
	SeccompUnconfined bool
	// Networks admit a pod's addresses, in this order, before its containers start, and forget them
	// when it has ended.
	Networks []Network
	// RuntimeStarted, if set, is called when the runtime was connected to, again or for the first
	// time.
	RuntimeStarted func()
	// LocalPathDir is where local volumes are that the cluster has provisioned on this node; empty
	// for none.
	LocalPathDir string
	// Alone is set when no other component of the process needs all pods and nodes: then only this
	// node's are watched.
	Alone bool
	// Log gets errors and warnings; nil is the Set's.
	Log *slog.Logger
}

// shared returns the informers that the process has for other components, nil if there are none.
func (o *Options) shared(s *client.Set) informers.SharedInformerFactory {
	if o.Alone {
		return nil
	}
	return s.Informers
}

func (o *Options) complete() error {
	if o.NodeName == "" {
		return errors.New("kubelet: the node's name is required")
	}
	if o.Endpoint == "" {
		return errors.New("kubelet: the runtime's CRI endpoint is required, for example unix:///run/coracle/coracle.sock")
	}
	for _, list := range [][]string{o.NodeIPs, o.ClusterDNS} {
		for _, ip := range list {
			if _, err := netip.ParseAddr(ip); err != nil {
				return fmt.Errorf("kubelet: node and name server addresses must be IP addresses: %w", err)
			}
		}
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return errors.New("kubelet: a serving certificate needs its key, and the other way round")
	}
	set(&o.RootDir, defaultRoot)
	var err error
	if o.RootDir, err = filepath.Abs(o.RootDir); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	set(&o.LogDir, "/var/log/pods")
	set(&o.LegacyLogDir, filepath.Join(filepath.Dir(o.LogDir), "containers"))
	set(&o.CgroupRoot, "/")
	set(&o.ClusterDomain, "cluster.local")
	set(&o.ResolvConf, resolvconf.Path())
	if o.MaxPods == 0 {
		o.MaxPods = 110
	}
	if o.Port == 0 {
		o.Port = 10250
	}
	if o.PodPIDs == 0 {
		o.PodPIDs = defaultPodPIDs
	}
	o.Logs = o.Logs.WithDefaults()
	if err := o.Logs.Check(); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	if o.ImageGC == (images.GCPolicy{}) {
		o.ImageGC = images.DefaultGCPolicy
	}
	return nil
}

// makeDirs makes the kubelet's directories. Volumes have set-user-id programs and files of any
// owner, as containers wrote them: no user of the node may reach them. Log collectors need not be
// root.
func (o *Options) makeDirs() error {
	for _, dir := range []string{o.RootDir, filepath.Join(o.RootDir, "pods")} {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
			return err
		}
	}
	for _, dir := range []string{o.LogDir, o.LegacyLogDir, o.StaticPodDir} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func set(field *string, value string) {
	if *field == "" {
		*field = value
	}
}

// defaultRoot is the kubelet's directory, and the name by which pods know it wherever it is.
const defaultRoot = "/var/lib/kubelet"

// defaultPodPIDs lets a pod have some thousands of threads and leaves others some: the kernel's own
// limit is 32,768 on small machines.
const defaultPodPIDs = 4096

// certReread is how long a serving certificate is used before its file is looked at again.
const certReread = time.Minute
