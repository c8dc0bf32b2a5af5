package framework

import v1 "k8s.io/api/core/v1"

// HostPort is a port of a node. The address 0.0.0.0 is all of the node's addresses.
type HostPort struct {
	IP       string
	Protocol v1.Protocol
	Port     int32
}

// anyIP is the address that conflicts with every other.
const anyIP = "0.0.0.0"

// HostPorts returns the host ports that pod's containers hold while the pod runs: those of its
// containers and sidecars, not of other init containers.
func HostPorts(pod *v1.Pod) []HostPort {
	var ports []HostPort
	add := func(c *v1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			hp := HostPort{IP: p.HostIP, Protocol: p.Protocol, Port: p.HostPort}
			if hp.IP == "" {
				hp.IP = anyIP
			}
			if hp.Protocol == "" {
				hp.Protocol = v1.ProtocolTCP
			}
			ports = append(ports, hp)
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return ports
}

// Conflicts says whether p and o cannot both be held on one node.
func (p HostPort) Conflicts(o HostPort) bool {
	return p.Port == o.Port && p.Protocol == o.Protocol && (p.IP == o.IP || p.IP == anyIP || o.IP == anyIP)
}
