package integration

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// dnsAddress is where pods find the cluster's DNS: the tenth address of the Services' network.
const dnsAddress = "10.96.0.10"

// clusterNames asks the cluster's DNS by UDP or TCP.
func clusterNames(network string) *net.Resolver {
	return &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(dnsAddress, "53"))
	}}
}

const (
	// nameServer is the node's, outsideName a name that it knows, and outsideAddress its address.
	nameServer     = "127.0.0.9"
	outsideName    = "www.outside.example."
	outsideAddress = "192.0.2.80"
)

// startNameServer gives the node a name server of its own, which knows one name.
func startNameServer(dir string) error {
	file := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver "+nameServer+"\n"), 0o644); err != nil {
		return err
	}
	if err := unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil { // of this mount namespace
		return fmt.Errorf("mount resolv.conf: %w", err)
	}
	conn, err := net.ListenPacket("udp", nameServer+":53")
	if err != nil {
		return err
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetRcode(q, dns.RcodeNameError)
		if asked := q.Question[0]; asked.Name == outsideName {
			m.Rcode = dns.RcodeSuccess
			if asked.Qtype == dns.TypeA {
				m.Answer = []dns.RR{&dns.A{
					Hdr: dns.RR_Header{Name: asked.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
					A:   net.ParseIP(outsideAddress),
				}}
			}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = server.ActivateAndServe() }() // as long as the tests
	return nil
}

// Pods and the node find Services, pods and addresses by the names that Kubernetes specifies, by
// UDP and TCP.
func TestNamesOfServicesResolve(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	create := func(s *corev1.Service) *corev1.Service {
		t.Helper()
		s, err := boat.kube.CoreV1().Services(ns).Create(ctx, s, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	web := create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
	}})
	create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "pets"}, Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "pets"}, Ports: []corev1.ServicePort{{Name: "http", Port: 8080}},
	}})
	create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "alias"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: "web." + ns + ".svc.cluster.local",
	}})
	pet := runPod(ctx, t, ns, "pet", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "pets"}
		p.Spec.Hostname, p.Spec.Subdomain = "rex", "pets"
		p.Spec.Containers[0].Command = []string{"sleep", "3600"}
	})
	running := awaitPod(ctx, t, ns, pet, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" })
	resolve := map[string]*net.Resolver{"udp": clusterNames("udp"), "tcp": clusterNames("tcp")}
	rex := "rex.pets." + ns + ".svc.cluster.local."
	eventually(ctx, t, "the endpoint has a name", func() (bool, error) {
		got, err := resolve["udp"].LookupHost(ctx, rex)
		return err == nil && slices.Equal(got, []string{running.Status.PodIP}), err
	})

	asker := runPod(ctx, t, ns, "asker", func(p *corev1.Pod) {
		// This nslookup uses the search path for names without a dot only.
		p.Spec.Containers[0].Command = []string{"sh", "-c", "for name in web alias web." + ns + ".svc.cluster.local " + rex +
			" kubernetes.default.svc.cluster.local " + outsideName + "; do " +
			`echo "? $name"; nslookup -type=a $name; done 2>&1; cat /etc/resolv.conf`}
	})
	awaitPod(ctx, t, ns, asker, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	log, err := boat.kube.CoreV1().Pods(ns).GetLogs(asker, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	api, err := boat.kube.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]string{}
	for _, part := range strings.Split(string(log), "? ")[1:] {
		name, answer, _ := strings.Cut(part, "\n")
		answers[name] = answer
	}
	for name, want := range map[string]string{
		"web": web.Spec.ClusterIP, "alias": web.Spec.ClusterIP, "web." + ns + ".svc.cluster.local": web.Spec.ClusterIP,
		rex: running.Status.PodIP, "kubernetes.default.svc.cluster.local": api.Spec.ClusterIP, outsideName: outsideAddress,
	} {
		if !strings.Contains(answers[name], "Address: "+want+"\n") {
			t.Errorf("in a pod, %s is not %s:\n%s", name, want, log)
		}
	}
	for _, want := range []string{
		"nameserver " + dnsAddress + "\n", "search " + ns + ".svc.cluster.local svc.cluster.local cluster.local", "options ndots:5",
	} {
		if !strings.Contains(string(log), want) {
			t.Errorf("the pod's resolv.conf has no %q:\n%s", want, log)
		}
	}

	full := "web." + ns + ".svc.cluster.local."
	for network, r := range resolve {
		if got, err := r.LookupHost(ctx, full); err != nil || !slices.Equal(got, []string{web.Spec.ClusterIP}) {
			t.Errorf("%s: the node finds %v, %v", network, got, err)
		}
		if _, got, err := r.LookupSRV(ctx, "http", "tcp", full); err != nil || len(got) != 1 || got[0].Port != 80 || got[0].Target != full {
			t.Errorf("%s: SRV %v, %v", network, got, err)
		}
		if got, err := r.LookupAddr(ctx, web.Spec.ClusterIP); err != nil || !slices.Equal(got, []string{full}) {
			t.Errorf("%s: PTR of the Service %v, %v", network, got, err)
		}
		if got, err := r.LookupAddr(ctx, running.Status.PodIP); err != nil || !slices.Equal(got, []string{rex}) {
			t.Errorf("%s: PTR of the endpoint %v, %v", network, got, err)
		}
		if got, err := r.LookupHost(ctx, "nothing."+ns+".svc.cluster.local."); err == nil || !isNotFound(err) {
			t.Errorf("%s: a name that there is not: %v, %v", network, got, err)
		}
	}
	kubeDNS, err := boat.kube.CoreV1().Services("kube-system").Get(ctx, "kube-dns", metav1.GetOptions{})
	if err != nil || kubeDNS.Spec.ClusterIP != dnsAddress {
		t.Errorf("the Service of the DNS: %v, %v", kubeDNS, err)
	}
}

// A killed process leaves its address to the next one.
func TestNamesResolveAfterAKill(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resolves := func() (bool, error) {
		got, err := clusterNames("udp").LookupHost(ctx, "kubernetes.default.svc.cluster.local.")
		return err == nil && len(got) == 1, err
	}
	eventually(ctx, t, "names resolve", resolves)
	boat.kill(t)
	eventually(ctx, t, "names resolve after a kill", resolves)
}

func isNotFound(err error) bool {
	e, ok := err.(*net.DNSError)
	return ok && e.IsNotFound
}

// runPod creates a pod that runs once and returns its name.
func runPod(ctx context.Context, t *testing.T, ns, name string, change func(*corev1.Pod)) string {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To[int64](0),
		Containers: []corev1.Container{{Name: "a", Image: image}},
	}}
	change(p)
	if _, err := boat.kube.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

// awaitPod returns a pod that is as wanted.
func awaitPod(ctx context.Context, t *testing.T, ns, name string, wanted func(*corev1.Pod) bool) (p *corev1.Pod) {
	t.Helper()
	eventually(ctx, t, "pod "+name, func() (bool, error) {
		var err error
		p, err = boat.kube.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		if err == nil && !wanted(p) {
			return false, fmt.Errorf("%+v", p.Status)
		}
		return err == nil, err
	})
	return p
}
