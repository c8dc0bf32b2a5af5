package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A policy that exempts the group system:masters holds for what controllers make: each acts as a
// service account. Otherwise a Deployment would be the way around such a policy.
func TestPolicyHoldsForControllers(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	c := typed(t, nil)
	rule := func(group, resource string) admissionregistrationv1.NamedRuleWithOperations {
		return admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}},
		}}
	}
	create(ctx, t, c, &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{rule("", "pods"), rule("apps", "replicasets")},
			},
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name:       "masters-may",
				Expression: "!('system:masters' in request.userInfo.groups)",
			}},
			Validations: []admissionregistrationv1.Validation{{
				Expression: "!has(object.metadata.labels) || !('denied' in object.metadata.labels) || object.metadata.labels.denied != " +
					"request.resource.resource",
				MessageExpression: "request.userInfo.username + ' may not'",
			}},
		},
	})
	create(ctx, t, c, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: ns, MatchResources: &admissionregistrationv1.MatchResources{NamespaceSelector: within(ns)},
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	})
	pod := func(labels map[string]string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{NodeName: "nowhere", Containers: []corev1.Container{{Name: "main", Image: image}}},
		}
	}
	denied := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "direct", Labels: map[string]string{"denied": "pods"}}, Spec: pod(nil).Spec}
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	config := rest.CopyConfig(boat.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:kube-system:replicaset-controller", Groups: []string{
		"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated",
	}}
	controller, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the policy takes effect", func() (bool, error) {
		_, err := controller.CoreV1().Pods(ns).Create(ctx, denied, dryRun)
		return err != nil && strings.Contains(err.Error(), "may not"), err
	})
	// The group is exempt. If controllers were members, nothing would be refused below.
	eventually(ctx, t, "an administrator may", func() (bool, error) {
		_, err := boat.kube.CoreV1().Pods(ns).Create(ctx, denied, dryRun)
		return err == nil, err
	})

	for resource, controller := range map[string]string{"replicasets": "deployment-controller", "pods": "replicaset-controller"} {
		want := "system:serviceaccount:kube-system:" + controller + " may not"
		labels := map[string]string{"denied": resource}
		d := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: resource, Namespace: ns},
			Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pod(labels)},
		}
		if err := c.Create(ctx, d); err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "the Deployment denied "+resource+" says so", func() (bool, error) {
			d, err := boat.kube.AppsV1().Deployments(ns).Get(ctx, resource, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			for _, c := range d.Status.Conditions {
				if strings.Contains(c.Message, want) {
					return true, nil
				}
			}
			return false, fmt.Errorf("conditions %v", d.Status.Conditions)
		})
	}
	pods, err := boat.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil || len(pods.Items) > 0 {
		t.Errorf("pods %v, %v", pods.Items, err)
	}
}

// forbidden returns an error if a part of the cluster was refused what it wanted to do: its role
// does not fit what it does. Everything the tests had the cluster do counts.
func (c *cluster) forbidden() error {
	logs, err := filepath.Glob(filepath.Join(c.root(), "logs", "kube.log*"))
	if err != nil || len(logs) == 0 {
		return errors.Join(fmt.Errorf("the cluster has no log"), err)
	}
	var found []error
	served := false
	for _, log := range logs {
		data, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		served = served || bytes.Contains(data, []byte("msg=serving"))
		for line := range bytes.Lines(data) {
			// What a node may read follows its pods. One that was deleted by force runs on for a
			// moment, and what it refers to is not the node's any more.
			if bytes.Contains(line, []byte("no relationship found between node")) {
				continue
			}
			if bytes.Contains(line, []byte(`is forbidden: User \"system:`)) || bytes.Contains(line, []byte(`is forbidden: User "system:`)) {
				found = append(found, fmt.Errorf("a part of the cluster may not do its work: %s", bytes.TrimSpace(line)))
			}
		}
	}
	if !served {
		found = append(found, errors.New("the cluster's log does not even say that it served"))
	}
	return errors.Join(found...)
}

// The check above finds what it looks for: this is how a refusal is logged.
func TestForbiddenIsFound(t *testing.T) {
	t.Parallel()
	c := &cluster{dir: t.TempDir()}
	if err := os.MkdirAll(filepath.Join(c.root(), "logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.forbidden(); err == nil {
		t.Error("nothing is missed without a log")
	}
	refusal := apierrors.NewForbidden(corev1.Resource("pods"), "", fmt.Errorf(`User "system:serviceaccount:kube-system:x" cannot create`))
	for text, want := range map[string]bool{
		"level=INFO msg=serving\n": false,
		fmt.Sprintf("level=INFO msg=serving\nlevel=WARN msg=sync err=%q\n", refusal.Error()): true,
		fmt.Sprintf("level=INFO msg=serving\nlevel=WARN msg=sync err=%s\n", refusal.Error()): true,
	} {
		if err := os.WriteFile(filepath.Join(c.root(), "logs", "kube.log"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := c.forbidden(); (err != nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}
