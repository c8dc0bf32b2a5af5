package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/nodeaddr"
	"github.com/coracle-project/coracle/cluster/pki"
	"github.com/coracle-project/coracle/cluster/unserved"
)

// Options say where an API server keeps its data, how it is reached and whom it trusts. The zero
// value of a field means its default, if it has one.
type Options struct {
	// Root is where what outlives a reboot is kept, State where what does not. Required.
	Root, State string
	// PKI are the cluster's credentials. Required.
	PKI *pki.Bundle
	// BindAddress is what to listen on, 127.0.0.1 by default. Port 0 takes any free port.
	BindAddress string
	Port        int
	// AdvertiseAddress is where pods reach the server: the endpoint of the kubernetes Service.
	// Default: BindAddress, or the address of the default route if that is unspecified. A loopback
	// address is never published, pods could not use it: see HoldServiceAddress.
	AdvertiseAddress string
	// HoldServiceAddress is for a server that only loopback reaches. It gives the node the address
	// of the kubernetes Service, which only the node and its pods reach (package nodeaddr), and the
	// server listens there, too.
	HoldServiceAddress bool
	// Pods are those that reach that address besides those on coracled's links.
	Pods *nodeaddr.Pods
	// ClusterDomain is the domain of Services, cluster.local by default. The server's certificate
	// has its name in it.
	ClusterDomain string
	// ServiceCIDR is where the addresses of Services are taken from, 10.96.0.0/16 by default: a
	// network, or one of each family with a comma between them, of which the first is for Services
	// that do not say.
	ServiceCIDR string
	// EtcdServers are the URLs of an external etcd cluster. Without any, etcd runs in the process.
	EtcdServers []string
	// EtcdCA, EtcdCert and EtcdKey are files for talking to EtcdServers by TLS.
	EtcdCA, EtcdCert, EtcdKey string
	// TokenFile is a CSV file of static tokens: token,user,uid,"group,group".
	TokenFile string
	// EventTTL is how long events are kept, one hour by default.
	EventTTL time.Duration
	// ExtraAPIGroups installs further API groups (metrics.k8s.io) alongside the built-in ones, and
	// ExtraSchemes know their types.
	ExtraAPIGroups []func(*genericapiserver.GenericAPIServer) error
	ExtraSchemes   []*runtime.Scheme
	// PodsHealth is told whether pods reach the server, StoreHealth whether the etcd in this
	// process accepts writes; they may be nil.
	PodsHealth, StoreHealth *health.Part
	// EtcdQuota is how many bytes the database of the etcd in this process may have,
	// etcd.DefaultQuota if 0.
	EtcdQuota int64
	// Several is whether other API servers use the same etcd: its endpoints are published, and they
	// may not know at once what this one has written.
	Several bool
	// TakePeers has this server be started again as a member of etcd with peers, and LeavePeers
	// without them, when the last has gone. They are nil if it cannot. MembersHealth is told how its
	// peers are; it may be nil.
	TakePeers, LeavePeers func() error
	MembersHealth         *health.Part
	// EncryptionConfig is the file of an EncryptionConfiguration. Without it objects are stored as
	// they are. EncryptionHealth is told of its changes; it may be nil.
	EncryptionConfig string
	EncryptionHealth *health.Part
	// Audit says which requests are recorded.
	Audit AuditOptions
	// SharedFiles are those that another control-plane node has to have, too.
	SharedFiles SharedFiles
	// Unserved are kinds that nothing acts on, in addition to those that no cluster acts on: who
	// creates one gets a Warning.
	Unserved unserved.Kinds
	// Authentication says whose tokens are accepted besides the cluster's own.
	Authentication AuthenticationOptions
	// PodSecurity is the level of the Pod Security Standards for namespaces that name none:
	// privileged (the default), baseline or restricted.
	PodSecurity string
	// Concurrent is called when a request arrives while another one is being answered; it may be nil.
	Concurrent func()
	// Version is this release of Coracle, such as v1.2.3, for a later start of another.
	Version string
	// Log gets errors and warnings; nil discards them.
	Log *slog.Logger

	// seats is how many requests are worked on at a time, 600 by default and with borrowing: else each
	// level keeps to its own. bodyLimit is how long a request's body may take to arrive. For tests, as
	// the next.
	seats     int
	bodyLimit time.Duration
	// followLimit bounds what the server waits for before it answers clients, 2 s by default.
	followLimit time.Duration
	// compactEvery is how often old versions are dropped, the constant of that name by default.
	compactEvery time.Duration
	// history is how many changes a watch cache of few objects keeps at most, historyLimit by default.
	history int
	// calmPeriod is the period of watch caches, the constant of that name by default.
	calmPeriod time.Duration
	// inspect is shown what the server was built from; for generating OpenAPI documents.
	inspect func(*build)
}

const (
	defaultBindAddress = "127.0.0.1"
	defaultServiceCIDR = "10.96.0.0/16"
	// servicePort is the port of the kubernetes Service.
	servicePort = 443
)

// complete fills in defaults and says what is wrong with the rest, if anything.
func (o *Options) complete() (addresses, error) {
	if o.Root == "" || o.State == "" || o.PKI == nil {
		return addresses{}, errors.New("apiserver: Root, State and PKI must be given")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.EventTTL == 0 {
		o.EventTTL = time.Hour
	}
	if o.bodyLimit == 0 {
		o.bodyLimit = bodyLimit
	}
	if o.followLimit == 0 {
		o.followLimit = followLimit
	}
	if o.compactEvery == 0 {
		o.compactEvery = compactEvery
	}
	if o.calmPeriod == 0 {
		o.calmPeriod = calmPeriod
	}
	if o.history == 0 {
		o.history = historyLimit
	}
	for _, file := range []string{o.TokenFile, o.EtcdCA, o.EtcdCert, o.EtcdKey} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return addresses{}, fmt.Errorf("apiserver: %w", err)
		}
	}
	if err := CheckPodSecurity(o.PodSecurity); err != nil {
		return addresses{}, err
	}
	return o.resolve()
}

// Hosts returns the names and addresses under which a server with these options is called, for its
// certificate. It needs no other fields than the addresses.
func (o Options) Hosts() ([]string, error) {
	a, err := o.resolve()
	if err != nil {
		return nil, err
	}
	hosts := []string{
		"localhost", "127.0.0.1", a.public.String(), a.kubernetes.String(),
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + o.clusterDomain(),
	}
	if bind := net.ParseIP(o.BindAddress); bind != nil && !bind.IsUnspecified() {
		hosts = append(hosts, bind.String())
	}
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, name)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}

// URL is where other machines reach a server with these options, "" if only this one does. It needs
// no other fields than the addresses.
func (o Options) URL() string {
	a, err := o.resolve()
	if err != nil || a.held || a.public.IsLoopback() {
		return ""
	}
	return "https://" + net.JoinHostPort(a.public.String(), strconv.Itoa(o.Port))
}

func (o *Options) clusterDomain() string {
	if o.ClusterDomain == "" {
		return "cluster.local"
	}
	return o.ClusterDomain
}

// resolve fills in the defaults of addresses and says what is wrong with the rest.
func (o *Options) resolve() (addresses, error) {
	if o.BindAddress == "" {
		o.BindAddress = defaultBindAddress
	}
	if o.ServiceCIDR == "" {
		o.ServiceCIDR = defaultServiceCIDR
	}
	var a addresses
	bind, err := netip.ParseAddr(o.BindAddress)
	if err != nil {
		return a, fmt.Errorf("--bind-address %q is no IP address, such as 127.0.0.1 or 0.0.0.0", o.BindAddress)
	}
	if o.Port < 0 || o.Port > 65535 {
		return a, fmt.Errorf("--port %d is not between 0 and 65535", o.Port)
	}
	services, err := ServiceNetworks(o.ServiceCIDR)
	if err != nil {
		return a, err
	}
	for _, prefix := range services {
		host := prefix.Addr().BitLen() - prefix.Bits()
		if host < 3 || host > 20 {
			return a, fmt.Errorf("--service-cidr %s has room for 2^%d addresses; choose one of 2^3 to 2^20, such as %s/%d", prefix, host,
				prefix.Addr(), prefix.Addr().BitLen()-16)
		}
	}
	a.services = ipNet(services[0])
	if len(services) > 1 {
		a.second = ipNet(services[1])
	}
	a.kubernetes = net.IP(services[0].Addr().Next().AsSlice())
	if err := a.advertise(o.AdvertiseAddress, bind); err != nil {
		return a, err
	}
	if o.HoldServiceAddress && o.AdvertiseAddress == "" && a.public.IsLoopback() {
		a.held, a.public = true, a.kubernetes
	}
	return a, nil
}

// ServiceNetworks reads --service-cidr: a network, or one of each family with a comma between them.
func ServiceNetworks(text string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for one := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(one)
		if err != nil || p != p.Masked() || p.Addr().Is4In6() {
			return nil, fmt.Errorf("--service-cidr %q is no network, such as %s", one, defaultServiceCIDR)
		}
		all = append(all, p)
	}
	if len(all) > 2 || len(all) == 2 && all[0].Addr().Is4() == all[1].Addr().Is4() {
		return nil, fmt.Errorf("--service-cidr %s: give one network, or one of each family, such as %s,fd96:c0ac:1e::/112", text, defaultServiceCIDR)
	}
	return all, nil
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: net.IP(p.Addr().AsSlice()), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// addresses are the networks and addresses that the options amount to.
type addresses struct {
	// services is the network of Services' addresses, kubernetes the first of them.
	services   net.IPNet
	kubernetes net.IP
	// second is the network of their addresses of the other family, empty for none.
	second net.IPNet
	// public is where the server is reached from outside.
	public net.IP
	// held is whether public is the address of the kubernetes Service, which the node holds.
	held bool
}

func (a *addresses) advertise(wanted string, bind netip.Addr) error {
	switch {
	case wanted != "":
		if a.public = net.ParseIP(wanted); a.public == nil {
			return fmt.Errorf("the address to advertise, %q, is no IP address", wanted)
		}
	case bind.IsUnspecified():
		a.public = routeAddress()
	default:
		a.public = net.IP(bind.AsSlice())
	}
	return nil
}

// routeAddress returns the local address that packets to elsewhere have, 127.0.0.1 if there is no
// way to elsewhere. Nothing is sent: connecting a UDP socket only looks up the route.
func routeAddress() net.IP {
	for _, elsewhere := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // documentation addresses
		if conn, err := net.Dial("udp", elsewhere); err == nil {
			defer conn.Close()
			return conn.LocalAddr().(*net.UDPAddr).IP
		}
	}
	return net.IPv4(127, 0, 0, 1)
}

// Listens says why a server with these options could not listen, nil if it could. It needs no other
// fields than the addresses.
func (o Options) Listens() error {
	if _, err := o.resolve(); err != nil {
		return err
	}
	l, err := o.listen()
	if err != nil {
		return err
	}
	return l.Close()
}

// listen opens the server's socket.
func (o *Options) listen() (net.Listener, error) {
	address := net.JoinHostPort(o.BindAddress, strconv.Itoa(o.Port))
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, listenError(address, err)
	}
	return l, nil
}
