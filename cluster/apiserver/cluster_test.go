package apiserver

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

func TestDiscovery(t *testing.T) {
	want := []string{
		"admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps", "authentication.k8s.io", "authorization.k8s.io",
		"autoscaling",
		"batch", "certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io", "events.k8s.io", "flowcontrol.apiserver.k8s.io",
		"metrics.k8s.io", "networking.k8s.io", "node.k8s.io",
		"policy", "rbac.authorization.k8s.io", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
	}
	names := func(body []byte) []string {
		var list struct {
			Kind   string
			Groups []metav1.APIGroup
			Items  []struct{ Metadata metav1.ObjectMeta }
		}
		if err := json.Unmarshal(body, &list); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		var all []string
		for _, g := range list.Groups {
			if g.PreferredVersion.Version != "v1" && g.Name != "autoscaling" && g.Name != "metrics.k8s.io" {
				t.Errorf("%s prefers %s", g.Name, g.PreferredVersion.Version)
			}
			all = append(all, g.Name)
		}
		for _, i := range list.Items {
			all = append(all, i.Metadata.Name)
		}
		all = slices.DeleteFunc(all, func(n string) bool { return n == "example.org" || strings.HasSuffix(n, ".example.com") })
		slices.Sort(all)
		return all
	}
	for form, accept := range map[string]string{"plain": "application/json", "aggregated": aggregatedDiscovery} {
		resp, body := get(t, true, "/apis", "Accept", accept)
		if got := names(body); !slices.Equal(got, want) {
			t.Errorf("%s (%s): %v, want %v", form, resp.Header.Get("Content-Type"), got, want)
		}
	}
	client := clientOf(t, overTLS(t))
	resources, err := client.Discovery().ServerResourcesForGroupVersion("v1")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range resources.APIResources {
		all = append(all, r.Name)
	}
	for _, sub := range []string{
		"pods/exec", "pods/log", "pods/attach", "pods/portforward", "pods/eviction", "pods/binding",
		"pods/ephemeralcontainers", "pods/resize", "serviceaccounts/token",
	} {
		if !slices.Contains(all, sub) {
			t.Errorf("%s is not served", sub)
		}
	}
	if slices.Contains(all, "componentstatuses") {
		t.Error("componentstatuses are served")
	}
}

func TestOpenAPIIsServedInAllForms(t *testing.T) {
	_, index := get(t, true, "/openapi/v3")
	var paths struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal(index, &paths); err != nil || paths.Paths["apis/apps/v1"].ServerRelativeURL == "" {
		t.Fatalf("%v: %s", err, index)
	}
	hashed := paths.Paths["apis/apps/v1"].ServerRelativeURL
	for _, test := range []struct {
		path, accept, contentType, begins string
	}{
		{hashed, "application/json", "application/json", `{"openapi":"3.0.0","info":{"title":"Kubernetes"`},
		{
			hashed, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
			"\n\x053.0.0",
		},
		{"/openapi/v2", "application/json", "application/json", `{"swagger":"2.0","info":{"title":"Kubernetes"`},
		{
			"/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
			"application/com.github.proto-openapi.spec.v2.v1.0+protobuf", "\n\x032.0",
		},
	} {
		for _, encoding := range []string{"gzip", "identity"} {
			headers := []string{"Accept", test.accept}
			if encoding == "identity" { // else the transport asks for gzip and unpacks it
				headers = append(headers, "Accept-Encoding", encoding)
			}
			resp, body := get(t, true, test.path, headers...)
			if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != test.contentType ||
				!strings.HasPrefix(string(body), test.begins) {
				t.Errorf("%s %s: %d %s %.60q", test.path, test.accept, resp.StatusCode, resp.Header.Get("Content-Type"), body)
			}
			again := resp
			for known := ""; again.StatusCode == http.StatusOK && again.Header.Get("Etag") != known; {
				// What other tests have defined may still be leaving the document: then it is
				// another one.
				known = again.Header.Get("Etag")
				again, _ = get(t, true, test.path, "Accept", test.accept, "If-None-Match", known)
			}
			if again.StatusCode != http.StatusNotModified {
				t.Errorf("%s again: %d", test.path, again.StatusCode)
			}
		}
	}
	if resp, _ := get(t, true, "/openapi/v3/apis/apps/v1?hash=old", "Accept", "application/json"); resp.Request.URL.RequestURI() != hashed {
		t.Errorf("an old hash leads to %s", resp.Request.URL)
	}
	if resp, _ := get(t, true, "/openapi/v3/apis/none/v1"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("unknown document: %d", resp.StatusCode)
	}
	if resp, _ := get(t, true, "/openapi/v2", "Accept", "text/html"); resp.StatusCode != http.StatusNotAcceptable {
		t.Errorf("unknown form: %d", resp.StatusCode)
	}
}

func TestServices(t *testing.T) {
	client := admin(t)
	own, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || own.Spec.ClusterIP != "10.96.0.1" {
		t.Errorf("the kubernetes Service: %+v, %v", own, err)
	}
	services := client.CoreV1().Services(namespace(t, client))
	s, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if port := s.Spec.Ports[0].NodePort; !strings.HasPrefix(s.Spec.ClusterIP, "10.96.") || port < 30000 || port > 32767 {
		t.Errorf("got %s and port %d", s.Spec.ClusterIP, port)
	}
	taken := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "other"},
		Spec:       corev1.ServiceSpec{ClusterIP: s.Spec.ClusterIP, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if _, err := services.Create(t.Context(), taken, metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "already allocated") {
		t.Errorf("an address that is taken: %v", err)
	}
}

func TestBuiltInObjects(t *testing.T) {
	client := admin(t)
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		if _, err := client.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"system-node-critical", "system-cluster-critical"} {
		if _, err := client.SchedulingV1().PriorityClasses().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{
		"cluster-admin", "admin", "edit", "view", "system:kube-scheduler",
		"system:controller:replicaset-controller",
	} {
		if _, err := client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	if _, err := client.RbacV1().RoleBindings("kube-system").Get(t.Context(), "system::extension-apiserver-authentication-reader",
		metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

func TestPodAdmission(t *testing.T) {
	client := admin(t)
	ns := namespace(t, client)
	if _, err := client.SchedulingV1().PriorityClasses().Create(t.Context(),
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: ns}, Value: 7}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	limits, err := client.CoreV1().LimitRanges(ns).Create(t.Context(), &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "limits"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitSeen(t, server.Informers().Core().V1().LimitRanges().Informer(), func(obj any) bool {
		return obj.(*corev1.LimitRange).UID == limits.UID
	})
	waitSeen(t, server.Informers().Scheduling().V1().PriorityClasses().Informer(), func(obj any) bool {
		return obj.(*schedulingv1.PriorityClass).Name == ns
	})
	pod, err := client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       corev1.PodSpec{PriorityClassName: ns, Containers: []corev1.Container{{Name: "main", Image: "image"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *pod.Spec.Priority != 7 || len(pod.Spec.Tolerations) != 2 || pod.Spec.Containers[0].Resources.Limits.Memory().String() != "64Mi" {
		t.Errorf("admission left the pod as %+v", pod.Spec)
	}
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	if err := client.CoreV1().Pods(ns).Bind(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if pod, err = client.CoreV1().Pods(ns).Get(t.Context(), "p", metav1.GetOptions{}); err != nil || pod.Spec.NodeName != "n" {
		t.Errorf("after binding: %q, %v", pod.Spec.NodeName, err)
	}
	if err := client.CoreV1().Pods(ns).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}}); err != nil {
		t.Errorf("eviction: %v", err)
	}
	if _, err := client.CoreV1().Namespaces().Patch(t.Context(), ns, "application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitSeen(t, server.Informers().Core().V1().Namespaces().Informer(), func(obj any) bool {
		n := obj.(*corev1.Namespace)
		return n.Name == ns && n.Labels["pod-security.kubernetes.io/enforce"] != ""
	})
	_, err = client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "root"},
		Spec:       corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "main", Image: "image"}}},
	}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `violates PodSecurity "restricted:latest"`) {
		t.Errorf("a pod that the namespace does not allow: %v", err)
	}
}

// What makes no sense in a NetworkPolicy is refused, so that what enforces policies never sees it.
func TestNetworkPoliciesThatMakeNoSense(t *testing.T) {
	client := clientOf(t, server.ClientConfig("admin", "system:masters"))
	ns := namespace(t, client)
	peer := func(p networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{p}}
	}
	port := func(p networkingv1.NetworkPolicyPort) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{p}}
	}
	block := func(cidr string, except ...string) networkingv1.NetworkPolicyIngressRule {
		return peer(networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}})
	}
	label := metav1.LabelSelector{MatchLabels: map[string]string{"a": "b c"}}
	for name, rule := range map[string]networkingv1.NetworkPolicyIngressRule{
		"no network":           block("10.0.0.0"),
		"too long a prefix":    block("10.0.0.0/33"),
		"no exception":         block("10.0.0.0/8", "x"),
		"an exception outside": block("10.0.0.0/8", "11.0.0.0/16"),
		"an exception of all":  block("10.0.0.0/8", "10.0.0.0/8"),
		"two kinds of a peer": peer(networkingv1.NetworkPolicyPeer{
			IPBlock:     &networkingv1.IPBlock{CIDR: "10.0.0.0/8"},
			PodSelector: &metav1.LabelSelector{},
		}),
		"no peer":                 peer(networkingv1.NetworkPolicyPeer{}),
		"no label":                peer(networkingv1.NetworkPolicyPeer{PodSelector: &label}),
		"no label of a namespace": peer(networkingv1.NetworkPolicyPeer{NamespaceSelector: &label}),
		"no protocol":             port(networkingv1.NetworkPolicyPort{Protocol: ptr.To(corev1.Protocol("ICMP"))}),
		"port 0":                  port(networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(0))}),
		"port 65536":              port(networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(65536))}),
		"no name of a port":       port(networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromString("Web_Server"))}),
		"a range that ends early": port(networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(90)), EndPort: ptr.To[int32](80)}),
		"a range of no port":      port(networkingv1.NetworkPolicyPort{EndPort: ptr.To[int32](80)}),
		"a range from a name":     port(networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromString("web")), EndPort: ptr.To[int32](80)}),
	} {
		_, err := client.NetworkingV1().NetworkPolicies(ns).Create(t.Context(), &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{rule}},
		}, metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// warnings collects Warning headers.
type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _ string, message string) { *w = append(*w, message) }

func TestWhatIsOnlyStoredIsAnsweredWithAWarning(t *testing.T) {
	var got warnings
	config := server.ClientConfig("admin", "system:masters")
	config.WarningHandler = rest.WarningHandler(&got)
	client := clientOf(t, config)
	ns := namespace(t, client)
	create := map[string]func() error{
		`IngressClass "x" is stored but not acted on by this cluster: no traffic is routed by it`: func() error {
			_, err := client.NetworkingV1().IngressClasses().Create(t.Context(), &networkingv1.IngressClass{
				ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: networkingv1.IngressClassSpec{Controller: "example.com/x"},
			}, metav1.CreateOptions{})
			return err
		},
		`Ingress "x" is stored but not acted on by this cluster: no traffic is routed by it`: func() error {
			_, err := client.NetworkingV1().Ingresses(ns).Create(t.Context(), &networkingv1.Ingress{
				ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: networkingv1.IngressSpec{DefaultBackend: &networkingv1.IngressBackend{
					Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}},
				}},
			}, metav1.CreateOptions{})
			return err
		},
	}
	for want, f := range create {
		got = nil
		if err := f(); err != nil {
			t.Error(err)
		}
		if !slices.Equal(got, warnings{want}) {
			t.Errorf("warnings %q, want %q", got, want)
		}
	}
	got = nil
	d, err := client.AppsV1().Deployments(ns).Create(t.Context(), deployment("web"), metav1.CreateOptions{})
	if err != nil || len(got) != 0 {
		t.Errorf("a Deployment is answered with %q, %v", got, err)
	}
	if _, err := client.AppsV1().Deployments(ns).UpdateScale(t.Context(), d.Name, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: ns}, Spec: autoscalingv1.ScaleSpec{Replicas: 2},
	}, metav1.UpdateOptions{}); err != nil || len(got) != 0 {
		t.Errorf("scaling it with %q, %v", got, err)
	}
}
