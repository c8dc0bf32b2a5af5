package kubelet

import (
	"context"
	"net"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet/network/dns"

	"github.com/coracle-project/coracle/cluster/kubelet/node"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/criconfig"
)

// dns computes pods' resolv.conf by upstream's rules.
func (k *Kubelet) dns() criconfig.DNS { return k.resolvConfs(logging(k.recorder)) }

// PodDNS returns what a pod's resolv.conf says. It writes no Events.
func (k *Kubelet) PodDNS(ctx context.Context, p *v1.Pod) (*runtimeapi.DNSConfig, error) {
	return k.resolvConfs(&record.FakeRecorder{}).GetPodDNS(ctx, p)
}

func (k *Kubelet) resolvConfs(events record.EventRecorderLogger) *dns.Configurer {
	parse := func(all []string) (ips []net.IP) {
		for _, ip := range all {
			ips = append(ips, net.ParseIP(ip))
		}
		return ips
	}
	return dns.NewConfigurer(events, node.Ref(k.opts.NodeName), parse(k.opts.NodeIPs), parse(k.opts.ClusterDNS), k.opts.ClusterDomain,
		k.opts.ResolvConf)
}
