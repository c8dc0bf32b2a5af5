package network

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
)

// portMap is an entry of CNI's "portMappings" (the conventions document of CNI).
type portMap struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// bandwidth is CNI's "bandwidth": bits per second and bits.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// resolver is CNI's "dns".
type resolver struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// ipRange is an entry of CNI's "ipRanges": a list of lists, of each of which a pod gets an address.
type ipRange struct {
	Subnet netip.Prefix `json:"subnet"`
}

// The annotations by which Kubernetes limits a pod's traffic.
const (
	ingressAnnotation = "kubernetes.io/ingress-bandwidth"
	egressAnnotation  = "kubernetes.io/egress-bandwidth"
)

// capabilities are what plugins get that declare to want them. ranges are those of the node, if the
// cluster has told them.
func capabilities(p Pod, ranges []netip.Prefix) (map[string]any, error) {
	caps := map[string]any{}
	ports, err := hostPorts(p.Ports)
	if err != nil {
		return nil, err
	}
	if len(ports) > 0 {
		maps := make([]portMap, 0, len(ports))
		for _, h := range ports {
			m := portMap{HostPort: h.Port, ContainerPort: h.Target, Protocol: h.Protocol}
			if h.IP.IsValid() {
				m.HostIP = h.IP.String()
			}
			maps = append(maps, m)
		}
		caps["portMappings"] = maps
	}
	bw, err := bandwidthOf(p.Annotations)
	if err != nil {
		return nil, err
	}
	if bw != (bandwidth{}) {
		caps["bandwidth"] = bw
	}
	if d := p.DNS; len(d.Servers)+len(d.Searches)+len(d.Options) > 0 {
		caps["dns"] = resolver(d)
	}
	if len(ranges) > 0 {
		sets := make([][]ipRange, 0, len(ranges))
		for _, r := range ranges {
			sets = append(sets, []ipRange{{r}})
		}
		caps["ipRanges"] = sets
	}
	if p.CgroupParent != "" {
		caps["cgroupPath"] = p.CgroupParent
	}
	if len(p.Annotations) > 0 {
		caps["io.kubernetes.cri.pod-annotations"] = p.Annotations
	}
	return caps, nil
}

func bandwidthOf(annotations map[string]string) (bandwidth, error) {
	var b bandwidth
	for _, a := range []struct {
		name        string
		rate, burst *uint64
	}{
		{ingressAnnotation, &b.IngressRate, &b.IngressBurst},
		{egressAnnotation, &b.EgressRate, &b.EgressBurst},
	} {
		text, ok := annotations[a.name]
		if !ok {
			continue
		}
		rate, err := parseBits(text)
		if err != nil {
			return bandwidth{}, fmt.Errorf("%w: annotation %s: %w", ErrConfig, a.name, err)
		}
		// No limit on bursts, as the kubelet's own shaper had it.
		*a.rate, *a.burst = rate, math.MaxInt32
	}
	return b, nil
}

// maxRate and minRate are the limits that Kubernetes puts on these annotations.
const (
	minRate = 1_000
	maxRate = 1_000_000_000_000_000
)

// parseBits parses a Kubernetes quantity of whole bits per second, such as "10M".
func parseBits(s string) (uint64, error) {
	number, unit := s, uint64(1)
	for _, u := range []struct {
		suffix string
		times  uint64
	}{
		{"Ki", 1 << 10},
		{"Mi", 1 << 20},
		{"Gi", 1 << 30},
		{"Ti", 1 << 40},
		{"k", 1e3},
		{"M", 1e6},
		{"G", 1e9},
		{"T", 1e12},
		{"P", 1e15},
	} {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			number, unit = n, u.times
			break
		}
	}
	var n uint64
	for i, c := range []byte(number) {
		if c < '0' || c > '9' || i > 15 {
			return 0, fmt.Errorf("%q is not a number of bits per second such as 10M", s)
		}
		n = n*10 + uint64(c-'0')
	}
	if number == "" || n > maxRate/unit || n*unit < minRate {
		return 0, fmt.Errorf("%q is not between 1k and 1P bits per second", s)
	}
	return n * unit, nil
}
