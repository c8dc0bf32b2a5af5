package controllers

import (
	"context"
	"crypto/tls"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/internal/metatest"
	"github.com/coracle-project/coracle/cluster/controllers/rootca"
)

// TestMain keeps logs out of the tests'.
func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// together runs all controllers as one.
type together []Runner

func (all together) Run(ctx context.Context) { Run(ctx, all) }

// TestTogether has a Deployment made, served and deleted with its namespace, by all controllers.
func TestTogether(t *testing.T) {
	var api *metatest.API
	apitest.Controllers{func(set *client.Set) interface{ Run(context.Context) } {
		api = metatest.Of(set)
		all, err := New(Identities{Manager: api.Set, Account: func(string) (*client.Set, error) { return api.Set, nil }}, Options{
			Metadata: api.Metadata, RootCA: rootca.Fixed("CA"),
			SigningCA: func() (tls.Certificate, error) { return tls.Certificate{}, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		return together(all)
	}}.Run(t, func(t *testing.T, s *apitest.Server) {
		ctx, ns := context.Background(), apitest.Namespace
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: ns, Finalizers: []string{metatest.NamespaceFinalizer}},
			Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		}, metav1.CreateOptions{})
		check(err)
		_, err = s.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node"},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}, metav1.CreateOptions{})
		check(err)
		two, grace, labels := int32(2), int64(30), map[string]string{"app": "web"}
		_, err = s.Kube.AppsV1().Deployments(ns).Create(ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"},
			Spec: appsv1.DeploymentSpec{
				Replicas: &two, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
				},
			},
		}, metav1.CreateOptions{})
		check(err)
		s.Converge(t, nil)
		if pods := s.Pods(t); len(pods) != 2 {
			t.Fatalf("%d pods run, want 2", len(pods))
		}
		for _, has := range []func() error{
			func() error {
				_, err := s.Kube.CoreV1().ServiceAccounts(ns).Get(ctx, "default", metav1.GetOptions{})
				return err
			},
			func() error {
				_, err := s.Kube.CoreV1().ConfigMaps(ns).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
				return err
			},
		} {
			check(has())
		}

		s.Refuse(func(verb, resource string) error { // as admission does in a namespace that goes
			if verb != "create" {
				return nil
			}
			return &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden, Details: &metav1.StatusDetails{
				Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}},
			}}}
		})
		check(s.Kube.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}))
		for range 20 {
			s.Converge(t, nil)
			s.Pass(time.Minute)
		}
		namespaces, err := s.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		check(err)
		deployments, err := s.Kube.AppsV1().Deployments(ns).List(ctx, metav1.ListOptions{})
		check(err)
		if n, d, p := len(namespaces.Items), len(deployments.Items), len(s.Pods(t)); n+d+p > 0 {
			t.Errorf("%d namespaces, %d Deployments and %d pods are left", n, d, p)
		}
	})
}
