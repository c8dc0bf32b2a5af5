package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

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
	for range 2 { // also if it is gone
		if err := m.unregister(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := m.drain(t.Context()); err != nil {
		t.Errorf("a node that is gone: %v", err)
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
		expect := func(want string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := m.await(ctx)
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
		n.Status.Conditions[0].Status = corev1.ConditionTrue
		if _, err := kube.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("")
		kube.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
		expect("the cluster at https://192.0.2.1:6443: connection refused")
	})
}

// An agent that starts while the cluster is away follows the settings of before.
func TestAgentRemembersSettings(t *testing.T) {
	a := agent{root: t.TempDir(), member: credentials.Node{Server: "https://192.0.2.1:6443"}}
	if err := os.Mkdir(credentialsDir(a.root), 0o700); err != nil {
		t.Fatal(err)
	}
	kube := fake.NewClientset()
	fails := false
	kube.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		if fails {
			return true, nil, apierrors.NewServiceUnavailable("away")
		}
		return false, nil, nil
	})
	fails = true
	if _, err := a.settings(t.Context(), kube); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("before the first settings: %v", err)
	}
	fails = false
	published := clusterinfo.Settings{ClusterDomain: "corp.example"}
	if err := clusterinfo.Publish(t.Context(), kube, "https://192.0.2.1:6443", nil, published); err != nil {
		t.Fatal(err)
	}
	for _, fails = range []bool{false, true} {
		if s, err := a.settings(t.Context(), kube); err != nil || s.ClusterDomain != "corp.example" {
			t.Errorf("away: %t: %+v, %v", fails, s, err)
		}
	}
}
