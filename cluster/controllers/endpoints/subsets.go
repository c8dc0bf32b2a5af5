package endpoints

//lint:file-ignore SA1019 the old API is what this package serves

import (
	"errors"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/conversion"
	reconciler "k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"
	repack "k8s.io/kubernetes/pkg/api/v1/endpoints"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	netutil "k8s.io/utils/net"
)

// maxAddresses is how many addresses an Endpoints object may hold.
const maxAddresses = 1000

// equalities compares subsets without the pods' versions, which change for many reasons.
var equalities = conversion.EqualitiesOrDie(func(a, b corev1.ObjectReference) bool {
	a.ResourceVersion, b.ResourceVersion = "", ""
	return a == b
})

// subsetsOf returns what a Service's Endpoints should say of its pods, in canonical order.
func subsetsOf(service *corev1.Service, pods []*corev1.Pod) []corev1.EndpointSubset {
	var subsets []corev1.EndpointSubset
	for _, pod := range pods {
		if !endpointsliceutil.ShouldPodBeInEndpoints(pod, service.Spec.PublishNotReadyAddresses) {
			continue
		}
		address, err := addressOf(service, pod)
		if err != nil {
			continue
		}
		ready := service.Spec.PublishNotReadyAddresses || podutil.IsPodReady(pod)
		if len(service.Spec.Ports) == 0 && service.Spec.ClusterIP == corev1.ClusterIPNone {
			subsets = append(subsets, subset(address, nil, ready))
		}
		for i := range service.Spec.Ports {
			servicePort := &service.Spec.Ports[i]
			port, err := reconciler.FindPort(pod, servicePort)
			if err != nil { // the pod has no port of that name
				continue
			}
			subsets = append(subsets, subset(address, &corev1.EndpointPort{
				Name: servicePort.Name, Port: int32(port), Protocol: servicePort.Protocol, AppProtocol: servicePort.AppProtocol,
			}, ready))
		}
	}
	return repack.RepackSubsets(subsets)
}

func subset(address corev1.EndpointAddress, port *corev1.EndpointPort, ready bool) corev1.EndpointSubset {
	var s corev1.EndpointSubset
	if port != nil {
		s.Ports = []corev1.EndpointPort{*port}
	}
	if ready {
		s.Addresses = []corev1.EndpointAddress{address}
	} else {
		s.NotReadyAddresses = []corev1.EndpointAddress{address}
	}
	return s
}

var errNoAddress = errors.New("the pod has no address of the service's family")

// addressOf returns the address of a pod in the Service's first family.
func addressOf(service *corev1.Service, pod *corev1.Pod) (corev1.EndpointAddress, error) {
	var wantIPv6 bool
	switch {
	case len(service.Spec.IPFamilies) > 0:
		wantIPv6 = service.Spec.IPFamilies[0] == corev1.IPv6Protocol
	case service.Spec.ClusterIP != "" && service.Spec.ClusterIP != corev1.ClusterIPNone:
		wantIPv6 = netutil.IsIPv6String(service.Spec.ClusterIP)
	default:
		wantIPv6 = netutil.IsIPv6String(pod.Status.PodIP)
	}
	for _, podIP := range pod.Status.PodIPs {
		ip := netutil.ParseIPSloppy(podIP.IP)
		if ip == nil || netutil.IsIPv6(ip) != wantIPv6 {
			continue
		}
		address := corev1.EndpointAddress{
			IP: ip.String(), NodeName: &pod.Spec.NodeName,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		}
		if endpointsliceutil.ShouldSetHostname(pod, service) {
			address.Hostname = pod.Spec.Hostname
		}
		return address, nil
	}
	return corev1.EndpointAddress{}, errNoAddress
}

func count(subsets []corev1.EndpointSubset) int {
	n := 0
	for _, s := range subsets {
		n += len(s.Addresses) + len(s.NotReadyAddresses)
	}
	return n
}

// truncate cuts addresses down to what an Endpoints object may hold, ready ones last, from each
// subset in proportion, and returns whether it had to.
func truncate(subsets []corev1.EndpointSubset) bool {
	ready := 0
	for _, s := range subsets {
		ready += len(s.Addresses)
	}
	all := count(subsets)
	if all <= maxAddresses {
		return false
	}
	cut := func(list *[]corev1.EndpointAddress, of int, room, left *int) {
		n := int(math.Ceil(float64(len(*list)) / float64(of) * float64(*room)))
		n = min(n, *left, len(*list))
		*list = (*list)[:n]
		*left -= n
	}
	room := maxAddresses - ready
	if ready > maxAddresses {
		room = maxAddresses
	}
	left := room
	for i := range subsets {
		if ready > maxAddresses {
			cut(&subsets[i].Addresses, ready, &room, &left)
			subsets[i].NotReadyAddresses = nil
		} else {
			cut(&subsets[i].NotReadyAddresses, all-ready, &room, &left)
		}
	}
	return true
}
