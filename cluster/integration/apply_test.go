package integration

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
)

// Two managers apply parts of one object: what each owns is theirs, a conflict names the other one
// and the field, and a field goes when its last owner lets go of it.
func TestServerSideApply(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	deployments := boat.kube.AppsV1().Deployments(ns)
	as := func(manager string, force bool) metav1.ApplyOptions {
		return metav1.ApplyOptions{FieldManager: manager, Force: force}
	}
	labels := map[string]string{"app": "oar"}
	base := func(replicas int32, env ...*coreapply.EnvVarApplyConfiguration) *appsapply.DeploymentApplyConfiguration {
		return appsapply.Deployment("oar", ns).WithSpec(appsapply.DeploymentSpec().WithReplicas(replicas).
			WithSelector(metaapply.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(coreapply.PodTemplateSpec().WithLabels(labels).WithSpec(coreapply.PodSpec().
				WithNodeSelector(map[string]string{"nowhere": ""}).
				WithContainers(coreapply.Container().WithName("oar").WithImage(image).WithEnv(env...)))))
	}
	mine, err := deployments.Apply(ctx, base(0, coreapply.EnvVar().WithName("A").WithValue("1")), as("mine", false))
	if err != nil {
		t.Fatal(err)
	}
	again, err := deployments.Apply(ctx, base(0, coreapply.EnvVar().WithName("A").WithValue("1")), as("mine", false))
	if err != nil || again.Generation != mine.Generation {
		t.Errorf("the same again: generation %d after %d, %v", again.Generation, mine.Generation, err)
	}
	scale := appsapply.Deployment("oar", ns).WithSpec(appsapply.DeploymentSpec().WithReplicas(2))
	_, err = deployments.Apply(ctx, scale, as("scaler", false))
	if !apierrors.IsConflict(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict) ||
		!strings.Contains(err.Error(), `conflict with "mine"`) || !strings.Contains(err.Error(), ".spec.replicas") {
		t.Errorf("a field of another manager: %v", err)
	}
	if d, err := deployments.Apply(ctx, scale, as("scaler", true)); err != nil || *d.Spec.Replicas != 2 {
		t.Errorf("by force: %v", err)
	}
	_, err = deployments.Apply(ctx, base(0), as("mine", false))
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "scaler"`) {
		t.Errorf("after it was taken by force: %v", err)
	}
	// Lists merge by key; what one manager no longer applies goes, what the other has stays.
	theirs := appsapply.Deployment("oar", ns).WithSpec(appsapply.DeploymentSpec().WithTemplate(coreapply.PodTemplateSpec().WithSpec(
		coreapply.PodSpec().WithContainers(coreapply.Container().WithName("oar").WithEnv(coreapply.EnvVar().WithName("B").WithValue("2"))))))
	if d, err := deployments.Apply(ctx, theirs, as("theirs", false)); err != nil || len(d.Spec.Template.Spec.Containers[0].Env) != 2 {
		t.Errorf("both managers' variables: %v, %v", d.Spec.Template.Spec.Containers[0].Env, err)
	}
	d, err := deployments.Apply(ctx, base(2), as("mine", false)) // without A; with replicas as the other one wants
	if env := d.Spec.Template.Spec.Containers[0].Env; err != nil || len(env) != 1 || env[0].Name != "B" {
		t.Errorf("after the first has let go of its variable: %v, %v", env, err)
	}
	owners := map[string]bool{}
	for _, e := range d.ManagedFields {
		if e.FieldsV1 != nil && strings.Contains(e.FieldsV1.GetRawString(), `"f:replicas":{}`) && e.Subresource == "" {
			owners[e.Manager] = true
		}
	}
	if !owners["mine"] || !owners["scaler"] {
		t.Errorf("replicas is owned by %v", owners)
	}
	// A status is a world of its own, and an unknown field is an error, not a loss.
	_, err = deployments.ApplyStatus(ctx, appsapply.Deployment("oar", ns).WithStatus(appsapply.DeploymentStatus().WithConditions(
		appsapply.DeploymentCondition().WithType("Tarred").WithStatus(corev1.ConditionTrue))), as("mine", false))
	if err != nil {
		t.Errorf("apply of a condition: %v", err)
	}
	_, err = deployments.Patch(ctx, "oar", types.ApplyPatchType, []byte(`{"apiVersion":"apps/v1","kind":"Deployment","spec":{"paddles":1}}`),
		as("mine", false).ToPatchOptions())
	if err == nil || !strings.Contains(err.Error(), ".spec.paddles: field not declared in schema") {
		t.Errorf("an unknown field: %v", err)
	}
}
