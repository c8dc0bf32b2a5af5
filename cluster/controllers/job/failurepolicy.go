package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// failure is what podFailurePolicy says about a failed pod.
type failure struct {
	action  batchv1.PodFailurePolicyAction // empty if no rule matches
	counts  bool                           // towards the limits of failures
	message string                         // why it fails the whole Job
}

// matchFailure finds the first rule that matches a failed pod.
func (r *run) matchFailure(pod *corev1.Pod) failure {
	if r.job.Spec.PodFailurePolicy == nil {
		return failure{counts: true}
	}
	for i, rule := range r.job.Spec.PodFailurePolicy.Rules {
		what := ""
		if rule.OnExitCodes != nil {
			c := exitMatching(pod, rule.OnExitCodes)
			if c == nil {
				continue
			}
			what = fmt.Sprintf("Container %s for pod %s/%s failed with exit code %v", c.Name, pod.Namespace, pod.Name, c.State.Terminated.ExitCode)
		} else {
			c := conditionMatching(pod, rule.OnPodConditions)
			if c == nil {
				continue
			}
			what = fmt.Sprintf("Pod %s/%s has condition %v", pod.Namespace, pod.Name, c.Type)
		}
		switch rule.Action {
		case batchv1.PodFailurePolicyActionIgnore:
			return failure{action: rule.Action}
		case batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex:
			return failure{action: rule.Action, counts: true}
		case batchv1.PodFailurePolicyActionFailJob:
			return failure{action: rule.Action, counts: true, message: fmt.Sprintf("%s matching %v rule at index %d", what, rule.Action, i)}
		}
	}
	return failure{counts: true}
}

// exitMatching returns the first container, init containers last, that exited with such a code.
// Exit code 0 is no failure.
func exitMatching(pod *corev1.Pod, rule *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for _, c := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if c.State.Terminated == nil || c.State.Terminated.ExitCode == 0 ||
			rule.ContainerName != nil && *rule.ContainerName != c.Name {
			continue
		}
		listed := slices.Contains(rule.Values, c.State.Terminated.ExitCode)
		if listed && rule.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn ||
			!listed && rule.Operator == batchv1.PodFailurePolicyOnExitCodesOpNotIn {
			return &c
		}
	}
	return nil
}

func conditionMatching(pod *corev1.Pod, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) *corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		for _, p := range patterns {
			if c.Type == p.Type && c.Status == p.Status {
				return &c
			}
		}
	}
	return nil
}
