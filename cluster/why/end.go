package why

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// source is where a connection begins.
type source struct {
	End
	pod *corev1.Pod // nil if it is none
}

// addressFor is the source's address of the family of another, the zero Addr for none.
func (s *source) addressFor(other netip.Addr) netip.Addr {
	i := slices.IndexFunc(s.Addresses, func(a netip.Addr) bool { return a.Is6() == other.Is6() })
	if i < 0 {
		return netip.Addr{}
	}
	return s.Addresses[i]
}

// reference is what a user wrote of an object: KIND/NAME, KIND/NAMESPACE/NAME, NAMESPACE/NAME or
// NAME.
type reference struct{ kind, namespace, name string }

var shortKinds = map[string]string{
	"pod": "pod", "pods": "pod", "po": "pod", "svc": "service", "service": "service", "services": "service",
	"node": "node",
}

func parseReference(text, namespace string) (reference, bool) {
	parts := strings.Split(text, "/")
	if slices.Contains(parts, "") {
		return reference{}, false
	}
	kind := shortKinds[parts[0]]
	switch {
	case len(parts) == 3 && kind != "" && kind != "node":
		return reference{kind, parts[1], parts[2]}, true
	case len(parts) == 2 && kind != "":
		return reference{kind, namespace, parts[1]}, true
	case len(parts) == 2:
		return reference{"", parts[0], parts[1]}, true
	case len(parts) == 1:
		return reference{"", namespace, parts[0]}, true
	}
	return reference{}, false
}

func (a *Asker) source(q Question) (*source, error) {
	if address, err := netip.ParseAddr(q.Source); err == nil {
		address = address.Unmap()
		if pod := a.podAt(address); pod != nil {
			return podSource(q.Source, pod)
		}
		end := End{Asked: q.Source, Kind: "address", Addresses: []netip.Addr{address}, Node: a.nodeAt(address)}
		if end.Node != "" {
			end.Kind, end.Name = "node", end.Node
		}
		return &source{End: end}, nil
	}
	ref, ok := parseReference(q.Source, q.Namespace)
	switch {
	case !ok:
		return nil, fmt.Errorf("source %q: it is pod/NAME, NAMESPACE/NAME, node/NAME or an IP address", q.Source)
	case ref.kind == "service":
		return nil, fmt.Errorf("source %q: a Service opens no connections; name a pod, a node or an IP address", q.Source)
	case ref.kind == "node":
		return a.nodeSource(q.Source, ref.name)
	}
	pod, err := a.Pods.Pods(ref.namespace).Get(ref.name)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("source %q: there is no pod %s/%s; -n names another namespace", q.Source, ref.namespace, ref.name)
	}
	if err != nil {
		return nil, err
	}
	return podSource(q.Source, pod)
}

func podSource(asked string, pod *corev1.Pod) (*source, error) {
	s := &source{
		End{Asked: asked, Kind: "pod", Name: pod.Namespace + "/" + pod.Name, Node: pod.Spec.NodeName, Addresses: addressesOf(pod)},
		pod,
	}
	if len(s.Addresses) == 0 {
		return nil, fmt.Errorf("source %q: pod %s has no address yet", asked, s.Name)
	}
	return s, nil
}

func (a *Asker) nodeSource(asked, name string) (*source, error) {
	node, err := a.Nodes.Get(name)
	if err != nil {
		return nil, fmt.Errorf("source %q: there is no node %s", asked, name)
	}
	s := &source{End: End{Asked: asked, Kind: "node", Name: name, Node: name}}
	for _, has := range node.Status.Addresses {
		if address, err := netip.ParseAddr(has.Address); err == nil {
			s.Addresses = append(s.Addresses, address.Unmap())
		}
	}
	return s, nil
}

// destination is where connections are to end.
type destination struct {
	End
	targets []target
	notes   []string
}

// wantedPort is what a user wrote of a port.
type wantedPort struct {
	text     string // as written; "" for none
	number   uint16 // 0 for a name, or for none
	name     string
	protocol corev1.Protocol // "" if none was named
}

// cutPort cuts :PORT off a destination.
func cutPort(text string) (rest string, port wantedPort, err error) {
	if _, err := netip.ParseAddr(text); err == nil { // IPv6 has colons
		return text, port, nil
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return text, port, nil
	}
	rest, port.text = strings.Trim(text[:i], "[]"), text[i+1:]
	name, protocol, named := strings.Cut(port.text, "/")
	if named {
		port.protocol = corev1.Protocol(strings.ToUpper(protocol))
		if !slices.Contains([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, port.protocol) {
			return "", port, fmt.Errorf("destination %q: %q is none of tcp, udp and sctp", text, protocol)
		}
	}
	number, err := strconv.ParseUint(name, 10, 16)
	switch {
	case err == nil && number > 0:
		port.number = uint16(number)
	case err == nil || name == "" || strings.Trim(name, "0123456789") == "":
		return "", port, fmt.Errorf("destination %q: %q is no port from 1 to 65535, nor a port's name", text, name)
	default:
		port.name = name
	}
	return rest, port, nil
}

// takes says whether a port of an object is what was wanted.
func (w wantedPort) takes(number uint16, name string, protocol corev1.Protocol) bool {
	if protocol == "" {
		protocol = corev1.ProtocolTCP
	}
	return (w.text == "" || w.number == number && w.number != 0 || w.name != "" && w.name == name) &&
		(w.protocol == "" || w.protocol == protocol)
}

func (a *Asker) destination(ctx context.Context, q Question, from *source) (*destination, error) {
	text, port, err := cutPort(q.Destination)
	if err != nil {
		return nil, err
	}
	if address, err := netip.ParseAddr(text); err == nil {
		return a.atAddress(q.Destination, address.Unmap(), port)
	}
	ref, ok := parseReference(text, q.Namespace)
	if !ok {
		return nil,
			fmt.Errorf("destination %q: it is pod/NAME, svc/NAME, NAMESPACE/NAME, an IP address or a DNS name, each with or without :PORT",
				q.Destination)
	}
	if ref.kind == "" && !strings.Contains(text, "/") {
		return a.byName(ctx, q.Destination, text, port, from)
	}
	if ref.kind == "node" {
		return nil, fmt.Errorf("destination %q: name the node's address", q.Destination)
	}
	if ref.kind != "service" {
		pod, err := a.Pods.Pods(ref.namespace).Get(ref.name)
		if err == nil {
			return a.ofPod(q.Destination, pod, port)
		}
		if ref.kind == "pod" || !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("destination %q: there is no pod %s/%s; -n names another namespace", q.Destination, ref.namespace, ref.name)
		}
	}
	s, err := a.Services.Services(ref.namespace).Get(ref.name)
	if err != nil {
		what := "Service"
		if ref.kind == "" {
			what = "pod and no Service"
		}
		return nil, fmt.Errorf("destination %q: there is no %s %s/%s; -n names another namespace", q.Destination, what, ref.namespace, ref.name)
	}
	return a.ofService(ctx, q.Destination, s, port, from)
}

// number returns a port that must be a number: it is an address's.
func (w wantedPort) require(asked string) (target, error) {
	if w.number == 0 {
		return target{}, fmt.Errorf("destination %q: name a port by its number, such as %s:80", asked, strings.TrimSuffix(asked, ":"+w.text))
	}
	return target{netip.AddrPortFrom(netip.Addr{}, w.number), numberOf(w.protocol)}, nil
}

// atAddress is an address: of a Service, a pod, a node or something else.
func (a *Asker) atAddress(asked string, address netip.Addr, port wantedPort) (*destination, error) {
	if pod := a.podAt(address); pod != nil {
		return a.ofPod(asked, pod, port)
	}
	t, err := port.require(asked)
	if err != nil {
		return nil, err
	}
	d := &destination{End: End{Asked: asked, Kind: "address", Addresses: []netip.Addr{address}, Node: a.nodeAt(address)}}
	if d.Node != "" {
		d.Kind, d.Name = "node", d.Node
	}
	d.targets = []target{{netip.AddrPortFrom(address, t.address.Port()), t.protocol}}
	return d, nil
}

func (a *Asker) ofPod(asked string, pod *corev1.Pod, port wantedPort) (*destination, error) {
	d := &destination{End: End{
		Asked: asked, Kind: "pod", Name: pod.Namespace + "/" + pod.Name, Node: pod.Spec.NodeName,
		Addresses: addressesOf(pod),
	}}
	if len(d.Addresses) == 0 {
		return nil, fmt.Errorf("destination %q: pod %s has no address yet", asked, d.Name)
	}
	var ports []target
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if port.takes(uint16(p.ContainerPort), p.Name, p.Protocol) {
				ports = append(ports, target{netip.AddrPortFrom(netip.Addr{}, uint16(p.ContainerPort)), numberOf(p.Protocol)})
			}
		}
	}
	if len(ports) == 0 { // containers need not name the ports where they listen
		t, err := port.require(asked)
		if err != nil {
			return nil, err
		}
		ports = []target{t}
	}
	d.add(ports)
	return d, nil
}

// add makes targets of all addresses with all ports.
func (d *destination) add(ports []target) {
	for _, address := range d.Addresses {
		for _, p := range ports {
			d.targets = append(d.targets, target{netip.AddrPortFrom(address, p.address.Port()), p.protocol})
		}
	}
}

func (a *Asker) ofService(ctx context.Context, asked string, s *corev1.Service, port wantedPort, from *source) (*destination, error) {
	d := &destination{End: End{Asked: asked, Kind: "service", Name: s.Namespace + "/" + s.Name}}
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		// What a CNAME leads to is a whole name.
		other, err := a.byName(ctx, asked, strings.TrimSuffix(s.Spec.ExternalName, ".")+".", port, from)
		if err == nil {
			other.notes = append([]string{fmt.Sprintf("Service %s is another name of %s", d.Name, s.Spec.ExternalName)}, other.notes...)
		}
		return other, err
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		return a.headless(d, s, port)
	}
	for _, ip := range s.Spec.ClusterIPs {
		if address, err := netip.ParseAddr(ip); err == nil {
			d.Addresses = append(d.Addresses, address)
		}
	}
	var ports []target
	for _, p := range s.Spec.Ports {
		if port.takes(uint16(p.Port), p.Name, p.Protocol) {
			ports = append(ports, target{netip.AddrPortFrom(netip.Addr{}, uint16(p.Port)), numberOf(p.Protocol)})
		}
	}
	if len(ports) == 0 {
		if port.number == 0 {
			return nil, fmt.Errorf("destination %q: Service %s has no port %s", asked, d.Name, port.text)
		}
		t, _ := port.require(asked) // it is refused, which the answer says
		ports = []target{t}
	}
	d.add(ports)
	return d, nil
}

// headless is a Service without an address of its own: its name has its endpoints' addresses.
func (a *Asker) headless(d *destination, s *corev1.Service, port wantedPort) (*destination, error) {
	all, err := a.slicesOf(s.Namespace, s.Name)
	if err != nil {
		return nil, err
	}
	d.notes = append(d.notes, fmt.Sprintf("Service %s is headless: clients connect to its endpoints themselves", d.Name))
	for _, slice := range all {
		if slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.Conditions.Ready != nil && !*e.Conditions.Ready && !s.Spec.PublishNotReadyAddresses {
				continue
			}
			before := len(d.targets)
			for _, p := range slice.Ports {
				if p.Port == nil || !port.takes(uint16(*p.Port), nameOf(p.Name), protocolOf(p.Protocol)) {
					continue
				}
				if at, ok := addressOf(e, uint16(*p.Port)); ok {
					d.targets = append(d.targets, target{at, numberOf(protocolOf(p.Protocol))})
				}
			}
			if at, ok := addressOf(e, port.number); ok && len(d.targets) == before && port.number != 0 {
				d.targets = append(d.targets, target{at, numberOf(port.protocol)})
			}
		}
	}
	if len(d.targets) == 0 {
		return nil, fmt.Errorf("destination %q: Service %s has no endpoint that is ready with such a port, so its name has no address", d.Asked,
			d.Name)
	}
	return d, nil
}
