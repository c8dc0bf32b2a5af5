package network

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/coracle-project/coracle/network/firewall"
)

// hostPort is a port of the host that a pod has. Any address is the zero Addr.
type hostPort struct {
	Protocol string     `json:"protocol"`
	IP       netip.Addr `json:"ip"`
	Port     uint16     `json:"port"`
	Target   uint16     `json:"target"` // port of the pod
}

func (h hostPort) String() string {
	if h.IP.IsValid() {
		return fmt.Sprintf("%s/%s", netip.AddrPortFrom(h.IP, h.Port), h.Protocol)
	}
	return fmt.Sprintf("%d/%s", h.Port, h.Protocol)
}

// hostPorts checks a pod's port mappings and returns those that ask for a port of
// the host. ErrConfig if one makes no sense, ErrPortInUse if two are the same.
func hostPorts(mappings []PortMapping) ([]hostPort, error) {
	var ports []hostPort
	for _, m := range mappings {
		if m.HostPort == 0 {
			continue
		}
		p := hostPort{Protocol: m.Protocol, IP: m.HostIP.Unmap(), Port: m.HostPort, Target: m.ContainerPort}
		if p.IP.IsValid() && p.IP.IsUnspecified() {
			p.IP = netip.Addr{}
		}
		if _, ok := firewall.ProtocolNumber(p.Protocol); !ok {
			return nil, fmt.Errorf("%w: host port %s: protocol must be tcp, udp or sctp", ErrConfig, p)
		}
		if p.Target == 0 {
			return nil, fmt.Errorf("%w: host port %s: container port is missing", ErrConfig, p)
		}
		if p.IP == netip.IPv6Loopback() {
			return nil, fmt.Errorf("%w: host port %s: the kernel cannot forward from ::1", ErrConfig, p)
		}
		if i := slices.IndexFunc(ports, p.conflicts); i >= 0 {
			return nil, fmt.Errorf("%w: %s is mapped twice", ErrPortInUse, p)
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// conflicts reports whether two mappings claim the same traffic.
func (h hostPort) conflicts(o hostPort) bool {
	return h.Protocol == o.Protocol && h.Port == o.Port && (h.IP == o.IP || !h.IP.IsValid() || !o.IP.IsValid())
}

// matches returns the addresses of the host that the rules match, if the pod has the addresses ips.
func (h hostPort) matches(ips []netip.Addr) []netip.Addr {
	var all []netip.Addr
	for _, ip := range ips {
		switch {
		case h.IP.IsValid():
			if h.IP.BitLen() == ip.BitLen() {
				all = append(all, h.IP)
			}
		case ip.Is4():
			all = append(all, netip.IPv4Unspecified())
		default:
			all = append(all, netip.IPv6Unspecified())
		}
	}
	return all
}

// portTable says which pod has which host port. It is not safe for concurrent use.
type portTable map[portKey][]portOwner

type portKey struct {
	protocol string
	port     uint16
}

type portOwner struct {
	hostPort
	podID string
}

// claim gives all ports to the pod, or none. ErrPortInUse names the owner.
func (t portTable) claim(podID string, ports []hostPort) error {
	for _, p := range ports {
		for _, o := range t[portKey{p.Protocol, p.Port}] {
			if o.podID != podID && o.conflicts(p) {
				return fmt.Errorf("%w: %s belongs to pod %s", ErrPortInUse, p, o.podID)
			}
		}
	}
	for _, p := range ports {
		k := portKey{p.Protocol, p.Port}
		t[k] = append(t[k], portOwner{p, podID})
	}
	return nil
}

func (t portTable) release(podID string, ports []hostPort) {
	for _, p := range ports {
		k := portKey{p.Protocol, p.Port}
		t[k] = slices.DeleteFunc(t[k], func(o portOwner) bool { return o.podID == podID && o.hostPort == p })
		if len(t[k]) == 0 {
			delete(t, k)
		}
	}
}
