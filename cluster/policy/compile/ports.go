package compile

import (
	"cmp"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/endpointslice"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// allPorts are all ports of all protocols, and protocols without ports.
var allPorts = rules.PortRange{}

var protocols = map[corev1.Protocol]byte{
	corev1.ProtocolTCP: unix.IPPROTO_TCP, corev1.ProtocolUDP: unix.IPPROTO_UDP, corev1.ProtocolSCTP: unix.IPPROTO_SCTP,
}

var protocolNames = map[byte]corev1.Protocol{
	unix.IPPROTO_TCP: corev1.ProtocolTCP, unix.IPPROTO_UDP: corev1.ProtocolUDP, unix.IPPROTO_SCTP: corev1.ProtocolSCTP,
}

// portName is a port that has a name, which each pod may give to another number.
type portName struct {
	name     string
	protocol byte
}

func comparePorts(a, b rules.PortRange) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
}

func comparePortNames(a, b portName) int {
	return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.protocol, b.protocol))
}

// unite returns ranges that cover the same ports and do not overlap, sorted. It may change the
// argument. Adjacent ports stay apart: the kernel finds single ports faster than ranges.
func unite(ports []rules.PortRange) []rules.PortRange {
	if len(ports) < 2 {
		return ports
	}
	slices.SortFunc(ports, comparePorts)
	if ports[0] == allPorts {
		return ports[:1]
	}
	united := ports[:1]
	for _, p := range ports[1:] {
		last := &united[len(united)-1]
		if p.Protocol == last.Protocol && p.First <= last.Last {
			last.Last = max(last.Last, p.Last)
			continue
		}
		united = append(united, p)
	}
	return united
}

// namedPort returns the number that a pod gives to a name, 0 for none: the one that a Service would
// have.
func namedPort(p *corev1.Pod, wanted portName) uint16 {
	n, err := endpointslice.FindPort(p, &corev1.ServicePort{
		Protocol: protocolNames[wanted.protocol], TargetPort: intstr.FromString(wanted.name),
	})
	if err != nil {
		return 0
	}
	return uint16(n)
}
