package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
)

// services are the networks of Services, of which the first is for those that do not say.
const services = "10.96.0.0/16,fd96:c0ac:1e::/112"

// Services get addresses of the families that they ask for. Pods reach them there, and find all of
// them by the Service's name.
func TestServicesOfBothFamilies(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	web := runPod(ctx, t, ns, "web", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "web"}
		p.Spec.Containers[0].Command = []string{"httpd", "-f", "-p", "8080", "-h", "/etc"}
	})
	awaitPod(ctx, t, ns, web, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })

	networks := strings.Split(services, ",")
	v4, v6 := netip.MustParsePrefix(networks[0]), netip.MustParsePrefix(networks[1])
	addresses := map[string][]string{}
	for _, c := range []struct {
		name     string
		policy   corev1.IPFamilyPolicy
		families []corev1.IPFamily
		want     []netip.Prefix
	}{
		{"default", "", nil, []netip.Prefix{v4}},
		{"six", corev1.IPFamilyPolicySingleStack, []corev1.IPFamily{corev1.IPv6Protocol}, []netip.Prefix{v6}},
		{"both", corev1.IPFamilyPolicyRequireDualStack, nil, []netip.Prefix{v4, v6}},
		{"six-first", corev1.IPFamilyPolicyPreferDualStack, []corev1.IPFamily{corev1.IPv6Protocol}, []netip.Prefix{v6, v4}},
	} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, IPFamilies: c.families,
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		}}
		if c.policy != "" {
			s.Spec.IPFamilyPolicy = ptr.To(c.policy)
		}
		s, err := boat.kube.CoreV1().Services(ns).Create(ctx, s, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Spec.ClusterIPs) != len(c.want) {
			t.Fatalf("%s: addresses %v, want of %v", c.name, s.Spec.ClusterIPs, c.want)
		}
		for i, text := range s.Spec.ClusterIPs {
			if addr, err := netip.ParseAddr(text); err != nil || !c.want[i].Contains(addr) {
				t.Errorf("%s: address %s, %v, want one of %s", c.name, text, err, c.want[i])
			}
		}
		addresses[c.name] = s.Spec.ClusterIPs
	}

	var urls []string
	names := clusterNames("udp")
	for name, all := range addresses {
		full := name + "." + ns + ".svc.cluster.local."
		want := slices.Sorted(slices.Values(all))
		eventually(ctx, t, full+" has its addresses", func() (bool, error) {
			got, err := names.LookupHost(ctx, full)
			slices.Sort(got)
			return slices.Equal(got, want), err
		})
		for _, ip := range all {
			urls = append(urls, "http://"+net.JoinHostPort(ip, "80")+"/hostname")
			if got, err := names.LookupAddr(ctx, ip); err != nil || !slices.Equal(got, []string{full}) {
				t.Errorf("the name of %s is %v, %v, not %s", ip, got, err, full)
			}
		}
	}
	client := runPod(ctx, t, ns, "client", func(p *corev1.Pod) {
		runSelf(t, &p.Spec, corev1.EnvVar{Name: fetchVar, Value: strings.Join(urls, " ")})
	})
	awaitPod(ctx, t, ns, client, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	log, err := boat.kube.CoreV1().Pods(ns).GetLogs(client, &corev1.PodLogOptions{}).DoRaw(ctx)
	if want := strings.Repeat(web+"\n", len(urls)); err != nil || string(log) != want {
		t.Errorf("in a pod, %v are %q, %v, want %q", urls, log, err, want)
	}
}

// fetchVar is the environment variable with which this program, in a pod, prints what URLs lead to.
const fetchVar = "FETCH_URLS"

// fetchAll is that program's main. It tries until the proxy has the endpoints.
func fetchAll(urls []string) int {
	for _, url := range urls {
		var last error
		err := wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
			var body []byte
			if body, last = read(url); last == nil {
				_, last = os.Stdout.Write(body)
			}
			return last == nil, nil
		})
		if err != nil {
			fmt.Println(last)
			return 1
		}
	}
	return 0
}

func read(url string) ([]byte, error) {
	resp, err := (&http.Client{Timeout: 20 * time.Second}).Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}
