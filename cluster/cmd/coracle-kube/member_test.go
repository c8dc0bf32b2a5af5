package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/kubelet/node"
	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
	"github.com/coracle-project/coracle/cluster/node/credentials"
)

func podOn(node, name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{NodeName: node}}
	if change != nil {
		change(p)
	}
	return p
}

// An API server whose certificate seems to have ended may be right.
func TestCertificatesThatSeemToHaveEnded(t *testing.T) {
	m := member{Node: credentials.Node{Server: "https://192.0.2.1:6443"}}
	invalid := x509.CertificateInvalidError{Reason: x509.Expired, Detail: "current time 2026-01-01T00:00:00Z is before 2026-01-01T00:55:00Z"}
	got := m.unreachable(&url.Error{Op: "Get", URL: m.Server, Err: &tls.CertificateVerificationError{Err: invalid}}).Error()
	want := "the certificate of the cluster at https://192.0.2.1:6443: " + invalid.Error() + "; do the clocks of both machines agree?"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A drained node has no pods but those that belong to it, and a budget is waited for.
func TestDrain(t *testing.T) {
	owned := true
	kube := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two"}}, podOn("two", "web", nil), podOn("two", "guarded", nil),
		podOn("two", "daemon", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "d", Controller: &owned}}
		}),
		podOn("two", "static", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }),
		podOn("two", "done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
	)
	asked := map[string]int{}
	kube.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e, ok := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if !ok {
			return false, nil, nil
		}
		asked[e.Name]++
		if e.Name == "guarded" && asked[e.Name] < 3 {
			return true, nil, apierrors.NewTooManyRequests("the budget does not allow it", 0)
		}
		return true, nil, kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), e.Namespace, e.Name)
	})
	m := member{credentials.Node{Name: "two"}, kube}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := m.drain(ctx); err != nil {
			t.Fatal(err)
		}
	})
	n, err := kube.CoreV1().Nodes().Get(t.Context(), "two", metav1.GetOptions{})
	if err != nil || !n.Spec.Unschedulable {
		t.Errorf("the node takes pods: %v", err)
	}
	left, err := kube.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 3 || asked["web"] != 1 || asked["guarded"] != 3 || len(asked) != 2 {
		t.Errorf("%d pods are left, asked %v, %v", len(left.Items), asked, err)
	}
	kube.PrependReactor("delete", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return slices.Equal(a.(clienttesting.DeleteAction).GetDeleteOptions().DryRun, []string{metav1.DryRunAll}), nil, nil
	})
	if err := m.check(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := kube.CoreV1().Nodes().Get(t.Context(), "two", metav1.GetOptions{}); err != nil {
		t.Errorf("the node after it was checked: %v", err)
	}
	for range 2 { // also if it is gone
		if err := m.unregister(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := m.drain(t.Context()); err != nil {
		t.Errorf("a node that is gone: %v", err)
	}
}

// API servers refuse all dry runs that would call a webhook with side effects.
func TestCheckWithoutDryRun(t *testing.T) {
	kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two"}})
	answer := error(webhookerrors.NewDryRunUnsupportedErr("nodes.example"))
	kube.PrependReactor("delete", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, answer })
	m := member{credentials.Node{Name: "two"}, kube}
	if err := m.check(t.Context()); err != nil {
		t.Error(err)
	}
	answer = apierrors.NewForbidden(corev1.Resource("nodes"), "two", errors.New("a taint"))
	if err := m.check(t.Context()); err == nil || !strings.Contains(err.Error(), "may not delete itself") {
		t.Errorf("a deletion that is refused: %v", err)
	}
}

func TestDrainSaysWhatStays(t *testing.T) {
	kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two"}}, podOn("two", "guarded", nil))
	kube.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewTooManyRequests("the budget does not allow it", 0)
	})
	m := member{credentials.Node{Name: "two"}, kube}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := m.drain(ctx); err == nil || !strings.Contains(err.Error(), "pod default/guarded stays: the budget does not allow it") {
			t.Error(err)
		}
	})
}

func TestAwaitNode(t *testing.T) {
	kube := fake.NewClientset()
	m := member{credentials.Node{Name: "two", Server: "https://192.0.2.1:6443"}, kube}
	synctest.Test(t, func(t *testing.T) {
		var since time.Time
		expect := func(want string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			waits, err := m.await(ctx, since)
			if err == nil && waits != "" {
				err = errors.New("it waits for a plugin: " + waits)
			}
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		expect("node two has not registered")
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two"}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "no range yet"}}
		if err := kube.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
		expect("node two is not Ready: no range yet")
		update := func(c corev1.NodeCondition) {
			t.Helper()
			n.Status.Conditions[0] = c
			if _, err := kube.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		update(corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: node.NoPlugin, Message: "no CNI"})
		expect("it waits for a plugin: no CNI")
		update(corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue})
		expect("")
		since = time.Now().Add(time.Millisecond) // the API has seconds
		for ago, want := range map[time.Duration]string{time.Minute: "its kubelet has not said anything yet", 0: ""} {
			update(corev1.NodeCondition{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(since.Add(-ago).Truncate(time.Second)),
			})
			expect(want)
		}
		kube.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
		expect("the cluster at https://192.0.2.1:6443: connection refused")
	})
}

// An agent that has once read the cluster's settings keeps them, whatever the API server answers.
// Without any it waits for a server that has not loaded its roles, and takes the defaults only from
// one that has no settings.
func TestSettingsOfAnAgent(t *testing.T) {
	away := apierrors.NewServiceUnavailable("away")
	forbidden := apierrors.NewForbidden(corev1.Resource("configmaps"), clusterinfo.AgentConfigMap, errors.New("no role"))
	gone := apierrors.NewNotFound(corev1.Resource("configmaps"), clusterinfo.AgentConfigMap)
	const good, none, later = `{"version": 1, "networkPolicies": true}`, `{"version": 0}`, `{"version": 3}`
	for name, c := range map[string]struct {
		file, want string  // what was saved, and a part of the error
		answers    []error // the first ones, before the cluster's settings
		always     error   // instead of settings
		policies   bool
	}{
		"away, none saved":           {always: away, want: "does not show its settings: "},
		"away, saved":                {always: away, file: good, policies: true},
		"away, no settings saved":    {always: away, file: none},
		"away, of a later release":   {always: away, file: later, want: "have version 3"},
		"forbidden, none saved":      {always: forbidden, want: "no role"},
		"forbidden, saved":           {always: forbidden, file: good, policies: true},
		"forbidden, no settings":     {always: forbidden, file: none},
		"no roles yet":               {answers: []error{forbidden, forbidden}, policies: true},
		"no settings":                {always: gone},
		"no roles yet, no settings":  {answers: []error{forbidden}, always: gone},
		"deleted":                    {always: gone, file: good, policies: true},
		"published":                  {policies: true},
		"published after none":       {file: none, policies: true},
		"published, a later release": {file: later, policies: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := agent{nodeOptions: nodeOptions{log: discard}, root: t.TempDir(), member: credentials.Node{Server: "https://192.0.2.1:6443"}}
			if err := os.Mkdir(credentialsDir(a.root), 0o700); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(credentialsDir(a.root), "settings.json")
			if c.file != "" {
				if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			kube := fake.NewClientset()
			published := clusterinfo.Settings{NetworkPolicies: true}
			if err := clusterinfo.Publish(t.Context(), kube, a.member.Server, nil, nil, published); err != nil {
				t.Fatal(err)
			}
			answers := c.answers
			kube.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
				if len(answers) > 0 {
					err := answers[0]
					answers = answers[1:]
					return true, nil, err
				}
				return c.always != nil, nil, c.always
			})
			expect := func(t *testing.T) {
				t.Helper()
				s, err := a.settings(t.Context(), kube)
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || s.NetworkPolicies != c.policies {
					t.Errorf("%+v, %v, want policies %t, error %q", s, err, c.policies, c.want)
				}
			}
			synctest.Test(t, func(t *testing.T) {
				expect(t)
				expect(t) // the first answer has not spoilt what was saved
			})
		})
	}
}

// A machine that joins saves what kind of control plane it has. Regression: an agent gave up on a
// control plane of upstream after a minute, whose nodes may not read settings of ours.
func TestSettingsOfAMachineThatJoins(t *testing.T) {
	forbidden := apierrors.NewForbidden(corev1.Resource("configmaps"), clusterinfo.AgentConfigMap, errors.New("no role"))
	for name, c := range map[string]struct {
		refusals int   // how often the settings are refused
		fails    error // the answer instead, if any
		version  int
		domain   string
	}{
		"ours":               {version: 1, domain: "ours.test"},
		"ours, no roles yet": {refusals: 2, version: 1, domain: "ours.test"},
		"upstream's":         {refusals: 1000, domain: "upstream.test"},
		"away":               {fails: apierrors.NewServiceUnavailable("away")},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.Mkdir(credentialsDir(root), 0o700); err != nil {
				t.Fatal(err)
			}
			kube := fake.NewClientset(&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubelet-config"},
				Data:       map[string]string{"kubelet": "clusterDNS: [10.96.0.10]\nclusterDomain: upstream.test\n"},
			})
			ours := clusterinfo.Settings{ClusterDomain: "ours.test"}
			if err := clusterinfo.Publish(t.Context(), kube, "https://192.0.2.1:6443", nil, nil, ours); err != nil {
				t.Fatal(err)
			}
			left := c.refusals
			kube.PrependReactor("get", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if c.fails != nil {
					return true, nil, c.fails
				}
				if left == 0 || a.(clienttesting.GetAction).GetName() != clusterinfo.AgentConfigMap {
					return false, nil, nil
				}
				left--
				return true, nil, forbidden
			})
			synctest.Test(t, func(t *testing.T) {
				if err := firstSettings(root)(t.Context(), kube); !errors.Is(err, c.fails) {
					t.Fatalf("%v, want %v", err, c.fails)
				}
			})
			s, known, err := lastSettings(settingsFile(root))
			if err != nil || known != (c.fails == nil) || s.Version != c.version || s.ClusterDomain != c.domain {
				t.Errorf("%+v, %t, %v", s, known, err)
			}
		})
	}
}

// A node of a control plane of upstream gives pods the cluster's DNS, and is none itself. Its
// kubelet can be reached before someone approves its serving certificate, but no API server of ours
// gets one that it does not know.
func TestNodeOfUpstream(t *testing.T) {
	a := agent{nodeOptions: nodeOptions{name: "two"}}
	for version, foreign := range map[int]bool{0: true, 1: false} {
		s := clusterinfo.Settings{Version: version, ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, ClusterDomain: "upstream.test"}
		p := a.node(s, 6443)
		if p.dnsElsewhere != foreign || !slices.Equal(p.dns, []string{"10.96.0.10"}) || p.domain != "upstream.test" {
			t.Errorf("version %d: %t, %v, %s", version, p.dnsElsewhere, p.dns, p.domain)
		}
		spare, err := spareServing(s, "two")
		if err != nil || (spare != nil) != foreign {
			t.Errorf("version %d: a certificate of its own %v, %v", version, spare, err)
		}
	}
}

func TestRangesThatOverlap(t *testing.T) {
	for name, c := range map[string]struct {
		o    apiOptions
		want string
	}{
		"Services": {apiOptions{podCIDR: []string{"10.96.0.0/12"}}, "--pod-cidr: 10.96.0.0/12 overlaps 10.96.0.0/16, the network of Services"},
		"load balancers": {
			apiOptions{podCIDR: []string{"10.85.0.0/16"}, balancers: balancerOptions{ranges: []string{"10.85.7.0/28"}}},
			"overlaps --pod-cidr 10.85.0.0/16",
		},
		"nothing": {apiOptions{podCIDR: []string{"10.85.0.0/16"}}, ""},
		"no network, on loopback": {
			apiOptions{podCIDR: []string{"nonsense"}, bind: "127.0.0.1"}, `--pod-cidr "nonsense" is no network, such as 10.96.0.0/16`,
		},
		"unused on loopback": {apiOptions{podCIDR: []string{"10.96.0.0/12"}, bind: "127.0.0.1"}, ""},
	} {
		o := c.o
		o.bind, o.port, o.peerPort, o.serviceCIDR = cmp.Or(o.bind, "192.0.2.1"), 6443, 2380, "10.96.0.0/16"
		err := o.check()
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A node follows how its cluster connects pods, unless its own flag leaves that to others.
func TestPodNetworkOfTheCluster(t *testing.T) {
	for _, c := range []struct{ cluster, own, want string }{
		{"auto", "auto", "auto"},
		{"none", "auto", "none"},
		{"", "auto", "auto"},
		{"auto", "none", "none"},
		{"later", "auto", "auto"},
		{"cni", "auto", "cni"},
		{"wireguard", "auto", "wireguard"},
		{"wireguard", "none", "wireguard"},
	} {
		settings, err := agentSettings(apiOptions{bind: "192.0.2.1", port: 6443, serviceCIDR: "10.96.0.0/16"}, nodeOptions{podNetwork: c.cluster},
			dnsOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a := agent{nodeOptions: nodeOptions{podNetwork: c.own}}
		if p := a.node(settings, 6443); p.podNetwork != c.want {
			t.Errorf("%q with a cluster of %q: %q, want %q", c.own, c.cluster, p.podNetwork, c.want)
		}
	}
}

// A request that is cut off does not hide what the last one has said.
func TestUntilKeepsTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		asked := 0
		err := until(ctx, func() (error, error) {
			if asked++; asked == 2 {
				cancel()
				return nil, ctx.Err()
			}
			return errors.New("pod a stays"), nil
		})
		if err == nil || err.Error() != "pod a stays" {
			t.Error(err)
		}
	})
}

// A pod that ends already is waited for, and not evicted a second time.
func TestDrainWaitsForPodsThatEnd(t *testing.T) {
	ending := podOn("two", "ending", nil)
	ending.DeletionTimestamp, ending.Finalizers = &metav1.Time{Time: time.Now()}, []string{"example.com/wait"}
	kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two"}}, ending)
	kube.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		t.Error("it was evicted")
		return true, nil, nil
	})
	m := member{credentials.Node{Name: "two"}, kube}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := m.drain(ctx); err == nil || err.Error() != "pod default/ending has not ended yet" {
			t.Error(err)
		}
	})
}

func TestANodeThatMayNotDeleteItself(t *testing.T) {
	kube := fake.NewClientset()
	kube.PrependReactor("delete", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "two", errors.New("taint"))
	})
	err := member{credentials.Node{Name: "two"}, kube}.unregister(t.Context())
	if err == nil || !strings.Contains(err.Error(), "'kubectl delete node two'") {
		t.Error(err)
	}
}

// Regression: a change of --bind-address or --etcd-peer-port had no effect on a member of etcd.
func TestAMemberFollowsItsFlags(t *testing.T) {
	const old = "https://192.0.2.7:2380"
	for name, c := range map[string]struct {
		bind    string
		port    int
		cluster map[string]string
		want    string
	}{
		"nothing is new":   {"192.0.2.7", 2380, nil, old},
		"another address":  {"192.0.2.8", 2380, nil, "https://192.0.2.8:2380"},
		"another port":     {"192.0.2.7", 2381, nil, "https://192.0.2.7:2381"},
		"loopback":         {"127.0.0.1", 2380, nil, old},
		"it never started": {"192.0.2.8", 2380, map[string]string{"one": old, "two": "https://192.0.2.9:2380"}, old},
	} {
		t.Run(name, func(t *testing.T) {
			o := &apiOptions{root: t.TempDir(), bind: c.bind, port: 6443, peerPort: c.port}
			if err := (etcd.Peers{Name: "one", URL: old, Cluster: c.cluster}).Write(o.root); err != nil {
				t.Fatal(err)
			}
			if err := o.findPeers("one", &health.Board{}, nil); err != nil {
				t.Fatal(err)
			}
			if p, err := etcd.ReadPeers(o.root); err != nil || p.URL != c.want {
				t.Errorf("the member is at %+v, %v, want %s", p, err, c.want)
			}
		})
	}
}
