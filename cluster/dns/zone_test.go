package dns

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coracle-project/coracle/cluster/dns/forward"
)

// cluster is what the cases of the specification ask for.
func cluster() []runtime.Object {
	all := []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "empty"}},
	}
	all = append(all, clusterService("default", "web", []string{"10.96.0.20"}, "http", "dns-udp", "")...)
	web := all[2].(*corev1.Service)
	all = append(all, sliceOf(web, 1, "10.244.0.30"))
	all = append(all, clusterService("default", "dual", []string{"10.96.0.21", "fd00:96::21"}, "http")...)
	all = append(all, clusterService("default", "six", []string{"fd00:96::22"}, "http")...)
	all = append(all, clusterService("kube-system", "kube-dns", []string{"10.96.0.10", "fd00:96::a"}, "dns")...)

	pets := headlessService("default", "pets", "http", "dns")
	all = append(all, pets,
		sliceOf(pets, 1, "10.244.0.2=my-pet", "10.244.0.3=my-pet-2", "10.244.0.4", "10.244.0.5=away!"),
		sliceOf(pets, 2, "10.244.0.2=my-pet"), // twice for a moment
		sliceOf(pets, 3, "fd00:244::2=my-pet", "fd00:244::4"))
	twins := headlessService("default", "twins", "http")
	all = append(all, twins, sliceOf(twins, 1, "10.244.0.6=twin", "10.244.0.7=twin"))
	early := headlessService("default", "early", "http")
	early.Spec.PublishNotReadyAddresses = true
	all = append(all, early, sliceOf(early, 1, "10.244.0.8!"))
	portless := headlessService("default", "portless")
	all = append(all, portless, sliceOf(portless, 1, "10.244.0.11"))
	gone := headlessService("default", "gone", "http")
	all = append(all, gone, sliceOf(gone, 1, "10.244.0.12!"), headlessService("default", "none", "http"))
	return append(all,
		externalService("default", "ext", "www.example.com"),
		externalService("default", "inward", "web.default.svc.cluster.local"),
		externalService("default", "ping", "pong.default.svc.cluster.local"),
		externalService("default", "pong", "ping.default.svc.cluster.local"),
		externalService("default", "long", strings.Repeat("a", 70)+".example.com"),
	)
}

const svc = ".svc.cluster.local."

// The specification's records, and that nothing else exists: section numbers are its own.
func TestSpecification(t *testing.T) {
	h := newHandler(t, forward.Config{}, cluster()...)
	const nxdomain, ok, servfail = dns.RcodeNameError, dns.RcodeSuccess, dns.RcodeServerFailure
	for _, tc := range []struct {
		name  string
		kind  uint16
		rcode int
		want  []string
	}{
		// 2.2
		{"dns-version.cluster.local.", dns.TypeTXT, ok, []string{`dns-version.cluster.local. 28800 IN TXT "1.1.0"`}},
		{"dns-version.cluster.local.", dns.TypeA, ok, nil},
		{"x.dns-version.cluster.local.", dns.TypeTXT, nxdomain, nil},
		// 2.3.1
		{"web.default" + svc, dns.TypeA, ok, []string{"web.default.svc.cluster.local. 5 IN A 10.96.0.20"}},
		{"web.default" + svc, dns.TypeAAAA, ok, nil},
		{"web.default" + svc, dns.TypeMX, ok, nil},
		{"dual.default" + svc, dns.TypeA, ok, []string{"dual.default.svc.cluster.local. 5 IN A 10.96.0.21"}},
		{"dual.default" + svc, dns.TypeAAAA, ok, []string{"dual.default.svc.cluster.local. 5 IN AAAA fd00:96::21"}},
		{"six.default" + svc, dns.TypeA, ok, nil},
		{"six.default" + svc, dns.TypeAAAA, ok, []string{"six.default.svc.cluster.local. 5 IN AAAA fd00:96::22"}},
		{"WeB.DEFAULT.sVc.Cluster.LOCAL.", dns.TypeA, ok, []string{"WeB.DEFAULT.sVc.Cluster.LOCAL. 5 IN A 10.96.0.20"}},
		{"web.empty" + svc, dns.TypeA, nxdomain, nil},
		{"web.nowhere" + svc, dns.TypeA, nxdomain, nil},
		{"x.web.default" + svc, dns.TypeA, nxdomain, nil},
		// an octet's number is only how it is written
		{`we\098.default` + svc, dns.TypeA, ok, []string{"web.default.svc.cluster.local. 5 IN A 10.96.0.20"}},
		{`web\.default` + svc, dns.TypeA, nxdomain, nil},
		{`x\.web.default` + svc, dns.TypeA, nxdomain, nil},
		{`web/default` + svc, dns.TypeA, nxdomain, nil},
		// 2.3.2
		{
			"_http._tcp.web.default" + svc, dns.TypeSRV, ok,
			[]string{"_http._tcp.web.default.svc.cluster.local. 5 IN SRV 0 100 80 web.default.svc.cluster.local."},
		},
		{
			"_dns-udp._udp.web.default" + svc, dns.TypeSRV, ok,
			[]string{"_dns-udp._udp.web.default.svc.cluster.local. 5 IN SRV 0 100 81 web.default.svc.cluster.local."},
		},
		{"_http._udp.web.default" + svc, dns.TypeSRV, nxdomain, nil},
		{"_http._tcp.web.default" + svc, dns.TypeA, ok, nil},
		{"_tcp.web.default" + svc, dns.TypeSRV, ok, nil},
		{"_sctp.web.default" + svc, dns.TypeSRV, nxdomain, nil},
		{"_._tcp.web.default" + svc, dns.TypeSRV, nxdomain, nil},
		{"_http._.web.default" + svc, dns.TypeSRV, nxdomain, nil},
		{"_.web.default" + svc, dns.TypeSRV, nxdomain, nil},
		{"http._tcp.web.default" + svc, dns.TypeSRV, nxdomain, nil},
		{"x._http._tcp.web.default" + svc, dns.TypeSRV, nxdomain, nil},
		{"dual.default" + svc, dns.TypeSRV, ok, []string{"dual.default.svc.cluster.local. 5 IN SRV 0 100 80 dual.default.svc.cluster.local."}},
		// 2.3.3
		{"20.0.96.10.in-addr.arpa.", dns.TypePTR, ok, []string{"20.0.96.10.in-addr.arpa. 5 IN PTR web.default.svc.cluster.local."}},
		{"20.0.96.10.IN-ADDR.arpa.", dns.TypePTR, ok, []string{"20.0.96.10.IN-ADDR.arpa. 5 IN PTR web.default.svc.cluster.local."}},
		{"20.0.96.10.in-addr.arpa.", dns.TypeA, ok, nil},
		{"2.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR, ok, []string{
			"2.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa. 5 IN PTR six.default.svc.cluster.local.",
		}},
		{"99.0.96.10.in-addr.arpa.", dns.TypePTR, nxdomain, nil}, // a free address of Services
		{"1.2.0.192.in-addr.arpa.", dns.TypePTR, servfail, nil},  // another's: there is no one to ask
		// 2.4.1
		{"pets.default" + svc, dns.TypeA, ok, []string{
			"pets.default.svc.cluster.local. 5 IN A 10.244.0.2", "pets.default.svc.cluster.local. 5 IN A 10.244.0.3",
			"pets.default.svc.cluster.local. 5 IN A 10.244.0.4",
		}},
		{
			"pets.default" + svc, dns.TypeAAAA, ok,
			[]string{"pets.default.svc.cluster.local. 5 IN AAAA fd00:244::2", "pets.default.svc.cluster.local. 5 IN AAAA fd00:244::4"},
		},
		{"my-pet.pets.default" + svc, dns.TypeA, ok, []string{"my-pet.pets.default.svc.cluster.local. 5 IN A 10.244.0.2"}},
		{"my-pet.pets.default" + svc, dns.TypeAAAA, ok, []string{"my-pet.pets.default.svc.cluster.local. 5 IN AAAA fd00:244::2"}},
		{"my-pet-2.pets.default" + svc, dns.TypeAAAA, ok, nil},
		{"10-244-0-4.pets.default" + svc, dns.TypeA, ok, []string{"10-244-0-4.pets.default.svc.cluster.local. 5 IN A 10.244.0.4"}},
		{"fd00-244--4.pets.default" + svc, dns.TypeAAAA, ok, []string{"fd00-244--4.pets.default.svc.cluster.local. 5 IN AAAA fd00:244::4"}},
		{"10-244-0-2.pets.default" + svc, dns.TypeA, nxdomain, nil}, // it has another name
		{"away.pets.default" + svc, dns.TypeA, nxdomain, nil},
		{
			"twin.twins.default" + svc, dns.TypeA, ok,
			[]string{"twin.twins.default.svc.cluster.local. 5 IN A 10.244.0.6", "twin.twins.default.svc.cluster.local. 5 IN A 10.244.0.7"},
		},
		{"early.default" + svc, dns.TypeA, ok, []string{"early.default.svc.cluster.local. 5 IN A 10.244.0.8"}}, // publishNotReadyAddresses
		{"portless.default" + svc, dns.TypeA, ok, []string{"portless.default.svc.cluster.local. 5 IN A 10.244.0.11"}},
		{"gone.default" + svc, dns.TypeA, nxdomain, nil},
		{"none.default" + svc, dns.TypeA, nxdomain, nil},
		{"10-244-0-30.web.default" + svc, dns.TypeA, ok, []string{"10-244-0-30.web.default.svc.cluster.local. 5 IN A 10.244.0.30"}},
		// 2.4.2
		{"_http._tcp.pets.default" + svc, dns.TypeSRV, ok, []string{
			"_http._tcp.pets.default.svc.cluster.local. 5 IN SRV 0 25 8080 10-244-0-4.pets.default.svc.cluster.local.",
			"_http._tcp.pets.default.svc.cluster.local. 5 IN SRV 0 25 8080 fd00-244--4.pets.default.svc.cluster.local.",
			"_http._tcp.pets.default.svc.cluster.local. 5 IN SRV 0 25 8080 my-pet-2.pets.default.svc.cluster.local.",
			"_http._tcp.pets.default.svc.cluster.local. 5 IN SRV 0 25 8080 my-pet.pets.default.svc.cluster.local.",
		}},
		{
			"twins.default" + svc, dns.TypeSRV, ok,
			[]string{"twins.default.svc.cluster.local. 5 IN SRV 0 100 8080 twin.twins.default.svc.cluster.local."},
		},
		{"_tcp.pets.default" + svc, dns.TypeSRV, ok, nil},
		{"_http._tcp.gone.default" + svc, dns.TypeSRV, nxdomain, nil},
		{"portless.default" + svc, dns.TypeSRV, ok, nil},
		// 2.4.3
		{"2.0.244.10.in-addr.arpa.", dns.TypePTR, ok, []string{"2.0.244.10.in-addr.arpa. 5 IN PTR my-pet.pets.default.svc.cluster.local."}},
		{"4.0.244.10.in-addr.arpa.", dns.TypePTR, ok, []string{"4.0.244.10.in-addr.arpa. 5 IN PTR 10-244-0-4.pets.default.svc.cluster.local."}},
		{"5.0.244.10.in-addr.arpa.", dns.TypePTR, servfail, nil},  // not ready
		{"30.0.244.10.in-addr.arpa.", dns.TypePTR, servfail, nil}, // not of a headless Service
		// 2.5
		{"ext.default" + svc, dns.TypeCNAME, ok, []string{"ext.default.svc.cluster.local. 5 IN CNAME www.example.com."}},
		{"ext.default" + svc, dns.TypeA, servfail, []string{"ext.default.svc.cluster.local. 5 IN CNAME www.example.com."}},
		{"x.ext.default" + svc, dns.TypeCNAME, nxdomain, nil},
		{"inward.default" + svc, dns.TypeA, ok, []string{
			"inward.default.svc.cluster.local. 5 IN CNAME web.default.svc.cluster.local.", "web.default.svc.cluster.local. 5 IN A 10.96.0.20",
		}},
		{"inward.default" + svc, dns.TypeMX, ok, []string{"inward.default.svc.cluster.local. 5 IN CNAME web.default.svc.cluster.local."}},
		{"ping.default" + svc, dns.TypeA, servfail, nil},
		{"long.default" + svc, dns.TypeA, nxdomain, nil},
		// 2.6
		{"10-1-2-3.default.pod.cluster.local.", dns.TypeA, ok, []string{"10-1-2-3.default.pod.cluster.local. 5 IN A 10.1.2.3"}},
		{"10-1-2-3.default.pod.cluster.local.", dns.TypeAAAA, ok, nil},
		{"fd00-244--2.default.pod.cluster.local.", dns.TypeAAAA, ok, []string{"fd00-244--2.default.pod.cluster.local. 5 IN AAAA fd00:244::2"}},
		{"fd00-1--a.default.pod.cluster.local.", dns.TypeAAAA, ok, []string{"fd00-1--a.default.pod.cluster.local. 5 IN AAAA fd00:1::a"}},
		{"10-1-2-300.default.pod.cluster.local.", dns.TypeA, nxdomain, nil},
		{"10-1-2-3.nowhere.pod.cluster.local.", dns.TypeA, nxdomain, nil},
		{"x.10-1-2-3.default.pod.cluster.local.", dns.TypeA, nxdomain, nil},
		{"web.default.pod.cluster.local.", dns.TypeA, nxdomain, nil},
		// Names that have only names below, or nothing.
		{"cluster.local.", dns.TypeA, ok, nil},
		{"cluster.local.", dns.TypeNS, ok, []string{"cluster.local. 5 IN NS kube-dns.kube-system.svc.cluster.local."}},
		{"svc.cluster.local.", dns.TypeA, ok, nil},
		{"pod.cluster.local.", dns.TypeA, ok, nil},
		{"default" + svc, dns.TypeA, ok, nil},
		{"default.pod.cluster.local.", dns.TypeA, ok, nil},
		{"nowhere" + svc, dns.TypeA, nxdomain, nil},
		{"nowhere.pod.cluster.local.", dns.TypeA, nxdomain, nil},
		{"www.example.com.default" + svc, dns.TypeA, nxdomain, nil}, // a pod's search path
		{"x.cluster.local.", dns.TypeA, nxdomain, nil},
		{"xcluster.local.", dns.TypeA, servfail, nil}, // another's
	} {
		reply := h.query(t, sender{addr: pod}, tc.name, tc.kind)
		if tc.want == nil {
			tc.want = []string{}
		}
		if got := text(reply.Answer); reply.Rcode != tc.rcode || !slices.Equal(got, tc.want) {
			t.Errorf("%s %s: %s %q, not %s %q", dns.TypeToString[tc.kind], tc.name, dns.RcodeToString[reply.Rcode], got, dns.RcodeToString[tc.rcode],
				tc.want)
		}
		if q := reply.Question[0]; q.Name != strings.ReplaceAll(tc.name, `\098`, "b") {
			t.Errorf("the question %s comes back as %s", tc.name, q.Name)
		}
		ours := strings.HasSuffix(strings.ToLower(tc.name), ".cluster.local.") || tc.name == "cluster.local."
		if negative := len(tc.want) == 0 && tc.rcode != servfail && ours || tc.kind == dns.TypeMX; negative != (len(reply.Ns) == 1) {
			t.Errorf("%s %s has the authority %v", dns.TypeToString[tc.kind], tc.name, reply.Ns)
		}
		if ours && tc.rcode != servfail && !reply.Authoritative || !reply.RecursionAvailable {
			t.Errorf("%s %s has the flags of %v", dns.TypeToString[tc.kind], tc.name, reply.MsgHdr)
		}
	}
}

func TestAddressesOfTargetsComeAlong(t *testing.T) {
	h := newHandler(t, forward.Config{}, cluster()...)
	for name, want := range map[string][]string{
		"_http._tcp.dual.default" + svc: {
			"dual.default.svc.cluster.local. 5 IN A 10.96.0.21",
			"dual.default.svc.cluster.local. 5 IN AAAA fd00:96::21",
		},
		"_http._tcp.twins.default" + svc: {
			"twin.twins.default.svc.cluster.local. 5 IN A 10.244.0.6", "twin.twins.default.svc.cluster.local. 5 IN A 10.244.0.7",
		},
	} {
		if got := text(h.query(t, sender{addr: pod}, name, dns.TypeSRV).Extra); !slices.Equal(got, want) {
			t.Errorf("%s comes with %q, not %q", name, got, want)
		}
	}
	want := []string{
		"kube-dns.kube-system.svc.cluster.local. 5 IN A 10.96.0.10",
		"kube-dns.kube-system.svc.cluster.local. 5 IN AAAA fd00:96::a",
	}
	if got := text(h.query(t, sender{addr: pod}, "cluster.local.", dns.TypeNS).Extra); !slices.Equal(got, want) {
		t.Errorf("the name server comes with %q", got)
	}
	soa := h.query(t, sender{addr: pod}, "cluster.local.", dns.TypeSOA)
	if len(soa.Answer) != 1 || soa.Answer[0].(*dns.SOA).Minttl != ttl {
		t.Errorf("the zone's SOA is %v", soa)
	}
}
