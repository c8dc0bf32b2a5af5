package proxy

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	upstream "k8s.io/kubernetes/pkg/proxy"
)

// sliceOf is a slice of Service web with a port "http", and ready endpoints unless an address
// starts with "-": that one is terminating.
func sliceOf(name string, port int32, addresses ...string) *discoveryv1.EndpointSlice {
	http, protocol, yes, no := "http", corev1.ProtocolTCP, true, false
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &http, Protocol: &protocol, Port: &port}, {Name: nil, Port: &port}, {Name: &http}},
	}
	for _, a := range addresses {
		e := discoveryv1.Endpoint{Addresses: []string{a}, NodeName: new("here")}
		if a[0] == '-' {
			e.Addresses[0] = a[1:]
			e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{})
	return s
}

// What is made of slices is what upstream's tracker makes of them.
func TestEndpointsAreThoseOfUpstream(t *testing.T) {
	web := upstream.ServicePortName{
		NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}, Port: "http",
		Protocol: corev1.ProtocolTCP,
	}
	hinted := sliceOf("c", 80, "10.0.0.7")
	hinted.Endpoints[0].Hints = &discoveryv1.EndpointHints{
		ForZones: []discoveryv1.ForZone{{Name: "east"}}, ForNodes: []discoveryv1.ForNode{{Name: "here"}, {Name: "there"}},
	}
	six := sliceOf("six", 80, "fd00::1")
	six.AddressType = discoveryv1.AddressTypeIPv6
	unnamed := sliceOf("unnamed", 80, "10.0.0.8")
	unnamed.Labels = nil
	lists := newEndpointLists(corev1.IPv4Protocol)
	theirs := upstream.EndpointsMap{}
	tracker := upstream.NewEndpointsChangeTracker(corev1.IPv4Protocol, "here", nil, nil)
	for i, step := range []struct {
		slice *discoveryv1.EndpointSlice
		gone  bool
	}{
		{slice: sliceOf("b", 80, "10.0.0.2", "10.0.0.1", "-10.0.0.3", "10.0.0.2")},
		{slice: sliceOf("a", 80, "-10.0.0.1", "10.0.0.3")}, // moving, and an address that is used again
		{slice: sliceOf("d", 81, "10.0.0.1", "010.000.000.009", "none", "127.0.0.1")},
		{slice: hinted},
		{slice: six},
		{slice: unnamed},
		{slice: sliceOf("b", 80, "10.0.0.5")},
		{slice: sliceOf("missing", 80), gone: true},
		{slice: sliceOf("a", 80), gone: true},
		{slice: sliceOf("c", 80), gone: true},
		{slice: sliceOf("b", 80), gone: true},
		{slice: sliceOf("d", 81), gone: true},
	} {
		changed := tracker.EndpointSliceUpdate(step.slice, step.gone)
		theirs.Update(tracker)
		if got := lists.update(step.slice, step.gone); got != changed {
			t.Errorf("step %d: changed %t, with upstream %t", i, got, changed)
		}
		if got := lists.take(); got[web] != changed {
			t.Errorf("step %d: changed are %v", i, got)
		}
		got, want := describe(lists.endpoints(web, "here", &endpointRoom{})), describe(theirs[web])
		if !slices.Equal(got, want) {
			t.Errorf("step %d: endpoints are\n%q, with upstream\n%q", i, got, want)
		}
	}
	if len(lists.slices) != 0 || len(lists.take()) != 0 {
		t.Errorf("left are %v", lists.slices)
	}
}

func describe(endpoints []upstream.Endpoint) (all []string) {
	for _, e := range endpoints {
		at := e.String()
		if e.IP() == "<nil>" || e.IP() == "invalid IP" {
			at = "none"
		}
		all = append(all, fmt.Sprint(at, e.Port(), e.IsLocal(), e.IsReady(), e.IsServing(), e.IsTerminating(), e.ZoneHints().Len(),
			e.NodeHints().Len()))
	}
	slices.Sort(all)
	return all
}

// A slice that was deleted and made again with the same name may be told of as an update.
func TestSliceOfAnotherFamily(t *testing.T) {
	p := &Proxy{wake: make(chan struct{}, 1)}
	v4, v6 := newEndpointLists(corev1.IPv4Protocol), newEndpointLists(corev1.IPv6Protocol)
	p.families = []*translation{{lists: v4}, {lists: v6}}
	four, six := sliceOf("a", 80, "10.0.0.1"), sliceOf("a", 80, "fd00::1")
	six.AddressType = discoveryv1.AddressTypeIPv6
	handler := p.slices()
	handler.OnAdd(four, true)
	for _, step := range []struct {
		before, now *discoveryv1.EndpointSlice
		gone, has   *endpointLists
	}{{four, six, v4, v6}, {six, four, v6, v4}} {
		handler.OnUpdate(step.before, step.now)
		if len(step.gone.slices) != 0 || len(step.has.slices) != 1 {
			t.Errorf("%s: %d slices of the former family are left, and there are %d", step.now.AddressType, len(step.gone.slices),
				len(step.has.slices))
		}
	}
}
