package namespace

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
)

// healthy is what each condition says when there is nothing to tell, in the order of the
// status.
var healthy = []corev1.NamespaceCondition{
	{Type: corev1.NamespaceDeletionDiscoveryFailure, Reason: "ResourcesDiscovered", Message: "All resources successfully discovered"},
	{Type: corev1.NamespaceDeletionGVParsingFailure, Reason: "ParsedGroupVersions", Message: "All legacy kube types successfully parsed"},
	{
		Type: corev1.NamespaceDeletionContentFailure, Reason: "ContentDeleted",
		Message: "All content successfully deleted, may be waiting on finalization",
	},
	{Type: corev1.NamespaceContentRemaining, Reason: "ContentRemoved", Message: "All content successfully removed"},
	{Type: corev1.NamespaceFinalizersRemaining, Reason: "ContentHasNoFinalizers", Message: "All content-preserving finalizers finished"},
}

// problems returns the reason and the message of each condition that is true.
func (r *remains) problems() map[corev1.NamespaceConditionType][2]string {
	out := map[corev1.NamespaceConditionType][2]string{}
	if r.discovery != nil {
		message := r.discovery.Error()
		var partial *discovery.ErrGroupDiscoveryFailed
		if errors.As(r.discovery, &partial) {
			message = fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(partial.Groups), partial)
		}
		out[corev1.NamespaceDeletionDiscoveryFailure] = [2]string{"DiscoveryFailed", message}
	}
	if len(r.failures) > 0 {
		messages := make([]string, 0, len(r.failures))
		for _, err := range r.failures {
			messages = append(messages, err.Error())
		}
		slices.Sort(messages)
		out[corev1.NamespaceDeletionContentFailure] = [2]string{
			"ContentDeletionFailed",
			fmt.Sprintf("Failed to delete all resource types, %d remaining: %s", len(messages), strings.Join(messages, ", ")),
		}
	}
	if r.podsLeft { // the rest was not looked at
		return out
	}
	var counts, finalizers []string
	for gvr, n := range r.counts {
		counts = append(counts, fmt.Sprintf("%s.%s has %d resource instances", gvr.Resource, gvr.Group, n))
	}
	for name, n := range r.finalizers {
		finalizers = append(finalizers, fmt.Sprintf("%s in %d resource instances", name, n))
	}
	slices.Sort(counts)
	slices.Sort(finalizers)
	if len(counts) > 0 {
		out[corev1.NamespaceContentRemaining] = [2]string{
			"SomeResourcesRemain",
			"Some resources are remaining: " + strings.Join(counts, ", "),
		}
	}
	if len(finalizers) > 0 {
		out[corev1.NamespaceFinalizersRemaining] = [2]string{
			"SomeFinalizersRemain",
			"Some content in the namespace has finalizers remaining: " + strings.Join(finalizers, ", "),
		}
	}
	return out
}

// reported writes what remains into a namespace's conditions, and returns whether that changed
// them.
func (r *remains) reported(status *corev1.NamespaceStatus, now metav1.Time) bool {
	changed := false
	problems := r.problems()
	for _, condition := range healthy {
		condition.Status, condition.LastTransitionTime = corev1.ConditionFalse, now
		if problem, ok := problems[condition.Type]; ok {
			condition.Status, condition.Reason, condition.Message = corev1.ConditionTrue, problem[0], problem[1]
		}
		i := slices.IndexFunc(status.Conditions, func(old corev1.NamespaceCondition) bool { return old.Type == condition.Type })
		if i < 0 {
			status.Conditions = append(status.Conditions, condition)
			changed = true
			continue
		}
		old := &status.Conditions[i]
		if old.Status == condition.Status {
			condition.LastTransitionTime = old.LastTransitionTime
		}
		if *old != condition {
			*old = condition
			changed = true
		}
	}
	return changed
}
