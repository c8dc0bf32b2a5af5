package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// policyTables are the nftables tables of network policies.
func policyTables() (names []string, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTables()
	for _, t := range tables {
		if strings.HasPrefix(t.Name, "coracle-policy-") {
			names = append(names, t.Name)
		}
	}
	return names, err
}

// webServer runs a pod that answers at port 8080, and returns its address.
func webServer(ctx context.Context, t *testing.T, ns, name string) string {
	t.Helper()
	runPod(ctx, t, ns, name, func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": name}
		p.Spec.Containers[0].Command = []string{"sh", "-c", "mkdir -p /www && echo hello >/www/index.html && exec httpd -f -p 8080 -h /www"}
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}},
			PeriodSeconds: 1,
		}
	})
	ready := awaitPod(ctx, t, ns, name, func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready
	})
	return ready.Status.PodIP
}

// askFor runs a pod that asks for a page as the first thing it does, once. One that is to be
// answered waits as long as a busy machine may need; for the others, two seconds are no answer.
func askFor(ctx context.Context, t *testing.T, ns, name, app, server string, answer bool) {
	t.Helper()
	seconds := 2
	if answer {
		seconds = 60
	}
	runPod(ctx, t, ns, name, func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": app}
		// The first process would ignore SIGTERM.
		p.Spec.Containers[0].Command = []string{"sh", "-c", fmt.Sprintf("timeout %d wget -q -O- http://%s:8080/; exit $?", seconds, server)}
	})
}

// answered says whether a client got its page.
func answered(ctx context.Context, t *testing.T, ns, name string) bool {
	t.Helper()
	ended := awaitPod(ctx, t, ns, name, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	said, err := boat.kube.CoreV1().Pods(ns).GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if state := ended.Status.ContainerStatuses[0].State.Terminated; state == nil || state.ExitCode != 0 && state.ExitCode != 143 {
		t.Errorf("%s neither got an answer nor waited for one: %+v; it says %q, %v", name, state, said, err)
	}
	return ended.Status.Phase == corev1.PodSucceeded
}

func createPolicy(ctx context.Context, t *testing.T, ns, name string, spec networkingv1.NetworkPolicySpec) {
	t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	if _, err := boat.kube.NetworkingV1().NetworkPolicies(ns).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func withApp(name string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

// captivity forbids pods to send anything.
func captivity(ctx context.Context, t *testing.T, ns string) {
	t.Helper()
	createPolicy(ctx, t, ns, "captivity", networkingv1.NetworkPolicySpec{
		PodSelector: withApp("captive"), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
	})
}

// tables waits for a table of policies to exist, or not to.
func tables(ctx context.Context, t *testing.T, want int) {
	t.Helper()
	eventually(ctx, t, fmt.Sprintf("%d tables of policies", want), func() (bool, error) {
		names, err := policyTables()
		if err == nil && len(names) != want {
			err = fmt.Errorf("there are %v", names)
		}
		return err == nil, err
	})
}

// Policies decide which pods reach each other, from the first packet of each. The table of the
// kernel comes with the first policy and goes with the last.
func TestNetworkPolicies(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	server := webServer(ctx, t, ns, "server")
	tables(ctx, t, 0)
	for _, name := range []string{"friend", "other", "captive"} { // without a policy
		askFor(ctx, t, ns, name+"-before", name, server, true)
	}
	for _, name := range []string{"friend", "other", "captive"} {
		if !answered(ctx, t, ns, name+"-before") {
			t.Fatalf("%s does not reach the server, and there is no policy", name)
		}
	}
	friend := withApp("friend")
	createPolicy(ctx, t, ns, "friends-only", networkingv1.NetworkPolicySpec{
		PodSelector: withApp("server"),
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &friend}}}},
	})
	captivity(ctx, t, ns)
	tables(ctx, t, 1)
	// The table comes with the first of them.
	eventually(ctx, t, "a pod is refused", func() (bool, error) {
		name := fmt.Sprintf("other-%d", len(listPods(ctx, t, ns)))
		askFor(ctx, t, ns, name, "other", server, false)
		return !answered(ctx, t, ns, name), nil
	})
	free := webServer(ctx, t, ns, "free-server")
	const each = 5
	for i := range each { // at once: their starts compete
		askFor(ctx, t, ns, fmt.Sprintf("friend-%d", i), "friend", server, true)
		askFor(ctx, t, ns, fmt.Sprintf("unknown-%d", i), "unknown", server, false)
		askFor(ctx, t, ns, fmt.Sprintf("captive-%d", i), "captive", free, false)
		askFor(ctx, t, ns, fmt.Sprintf("control-%d", i), "control", free, true)
	}
	for i := range each {
		for name, want := range map[string]bool{"friend": true, "unknown": false, "captive": false, "control": true} {
			if name := fmt.Sprintf("%s-%d", name, i); answered(ctx, t, ns, name) != want {
				t.Errorf("%s got an answer: %v, want %v", name, !want, want)
			}
		}
	}
	partlyEnforced(ctx, t, ns)
	for _, name := range []string{"friends-only", "captivity", "names"} {
		if err := boat.kube.NetworkingV1().NetworkPolicies(ns).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	tables(ctx, t, 0)
	askFor(ctx, t, ns, "other-after", "other", server, true)
	if !answered(ctx, t, ns, "other-after") {
		t.Error("the server is not reached after the last policy is gone")
	}
}

// partlyEnforced makes a policy of which something cannot be enforced, and waits for the Event that
// tells so.
func partlyEnforced(ctx context.Context, t *testing.T, ns string) {
	t.Helper()
	createPolicy(ctx, t, ns, "names", networkingv1.NetworkPolicySpec{
		PodSelector: withApp("none"), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		Egress: []networkingv1.NetworkPolicyEgressRule{{
			To:    []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.0/24"}}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromString("web"))}},
		}},
	})
	eventually(ctx, t, "the policy has an Event", func() (bool, error) {
		events, err := boat.kube.CoreV1().Events(ns).List(ctx,
			metav1.ListOptions{FieldSelector: "involvedObject.kind=NetworkPolicy,involvedObject.name=names"})
		if err != nil || len(events.Items) == 0 {
			return false, err
		}
		e := events.Items[0]
		return e.Reason == "InvalidRule" && strings.Contains(e.Message, "egress[0].to[0]: ports by name are those of pods"), fmt.Errorf("%+v", e)
	})
}

func listPods(ctx context.Context, t *testing.T, ns string) []corev1.Pod {
	t.Helper()
	pods, err := boat.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pods.Items
}

// A killed process leaves its rules, and the next one has no moment without them.
func TestNetworkPoliciesHoldWhenTheClusterProcessIsKilled(t *testing.T) {
	ctx, ns := namespace(t)
	server := webServer(ctx, t, ns, "server")
	captivity(ctx, t, ns)
	tables(ctx, t, 1)
	for _, name := range []string{"captive", "control"} {
		runPod(ctx, t, ns, name, func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": name}
			p.Spec.Containers[0].Command = []string{"sh", "-c", "while :; do " +
				"if timeout 1 wget -q -O /dev/null http://" + server + ":8080/; then echo open; sleep 0.1; else echo closed; fi; done"}
		})
	}
	said := func(pod, word string) int {
		log, err := boat.kube.CoreV1().Pods(ns).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err != nil {
			return 0 // it does not run yet
		}
		return strings.Count(string(log), word)
	}
	more := func(pod, word string) {
		t.Helper()
		before := said(pod, word)
		eventually(ctx, t, pod+" says "+word, func() (bool, error) { return said(pod, word) > before, nil })
	}
	more("captive", "closed")
	more("control", "open")
	boat.kill(t)
	more("captive", "closed")
	more("control", "open")
	if n := said("captive", "open"); n != 0 {
		t.Errorf("a pod that may send nothing got %d answers", n)
	}
	if err := boat.kube.NetworkingV1().NetworkPolicies(ns).Delete(ctx, "captivity", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	more("captive", "open") // it tries
	tables(ctx, t, 0)
}
