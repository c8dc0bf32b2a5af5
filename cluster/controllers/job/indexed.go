package job

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage/names"
	upstream "k8s.io/kubernetes/pkg/controller"
)

const (
	noIndex  = -1
	indexEnv = "JOB_COMPLETION_INDEX"
)

// indexOf is the completion index in a pod's annotation, or noIndex.
func indexOf(pod *corev1.Pod) int {
	index, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || index < 0 {
		return noIndex
	}
	return index
}

// validIndex reports whether a pod's index is one of the Job's. Pods of Jobs that are not indexed
// need none.
func (r *run) validIndex(pod *corev1.Pod) bool {
	if !r.indexed() {
		return true
	}
	index := indexOf(pod)
	return index != noIndex && index < int(*r.job.Spec.Completions)
}

// indexesOf is the set of indexes that pods have.
func indexesOf(pods []*corev1.Pod) intervals {
	var indexes []int
	for _, pod := range pods {
		if index := indexOf(pod); index != noIndex {
			indexes = append(indexes, index)
		}
	}
	return intervals(nil).withEach(indexes...)
}

// countIndexes works out which indexes have succeeded and which have failed for good. The number of
// successes is that of indexes, not of pods.
func (r *run) countIndexes() {
	completions := int(*r.job.Spec.Completions)
	r.before = parseIndexes(r.job.Status.CompletedIndexes, completions)
	r.done = r.before.with(indexesOf(r.unlisted(nil, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })))
	r.succeeded = int32(r.done.total())
	if !r.perIndex() {
		return
	}
	if before := r.job.Status.FailedIndexes; before != nil {
		r.lost = parseIndexes(*before, completions)
	}
	r.lost = r.lost.with(indexesOf(r.unlisted(nil, r.losesIndex)))
	r.keepFailed()
}

// losesIndex reports whether a pod's failure is the last one its index may have.
func (r *run) losesIndex(pod *corev1.Pod) bool {
	if !r.podFailed(pod) {
		return false
	}
	m := r.matchFailure(pod)
	return m.action == batchv1.PodFailurePolicyActionFailIndex ||
		m.counts && failures(pod, batchv1.JobIndexFailureCountAnnotation) >= *r.job.Spec.BackoffLimitPerIndex
}

// keepFailed finds, for each index that needs another pod, the failed pod that it takes over from:
// the one with most failures before it, the latest of those. It must not go before its count is in
// the annotations of its replacement.
func (r *run) keepFailed() {
	r.kept = map[int]*corev1.Pod{}
	settled := r.done.with(r.lost).with(indexesOf(r.active))
	for _, pod := range r.unlisted(nil, r.podFailed) {
		index := indexOf(pod)
		if settled.has(index) {
			continue
		}
		if had := r.kept[index]; had == nil || allFailures(pod) >= allFailures(had) && byFinish(pod, had) >= 0 {
			r.kept[index] = pod
		}
	}
}

// failures is a count in a pod's annotation: how often its index had failed before it. One that is
// missing or damaged is taken as none.
func failures(pod *corev1.Pod, annotation string) int32 {
	n, err := strconv.Atoi(pod.Annotations[annotation])
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return int32(n)
}

// allFailures includes those that podFailurePolicy ignores.
func allFailures(pod *corev1.Pod) int32 {
	return failures(pod, batchv1.JobIndexFailureCountAnnotation) + failures(pod, batchv1.JobIndexIgnoredFailureCountAnnotation)
}

// pendingIndexes are the n lowest indexes that have no pod and need one.
func (r *run) pendingIndexes(n int) []int {
	settled := r.done.with(r.lost).with(indexesOf(r.active))
	if r.replacesOnlyFailed() {
		settled = settled.with(indexesOf(upstream.FilterTerminatingPods(r.pods)))
	}
	return settled.firstMissing(n, int(*r.job.Spec.Completions))
}

// misplaced splits active pods into those that an indexed Job cannot use (no index, one out of
// range, or one that another pod further on in its life has as well) and the others.
func (r *run) misplaced() (surplus, rest []*corev1.Pod) {
	if !r.indexed() {
		return nil, slices.Clone(r.active)
	}
	best := map[int]*corev1.Pod{}
	for _, pod := range r.active {
		index := indexOf(pod)
		had := best[index]
		switch {
		case !r.validIndex(pod):
			surplus = append(surplus, pod)
		case had == nil:
			best[index] = pod
		case (upstream.ActivePods{had, pod}).Less(0, 1):
			surplus, best[index] = append(surplus, had), pod
		default:
			surplus = append(surplus, pod)
		}
	}
	for _, pod := range best {
		rest = append(rest, pod)
	}
	return surplus, rest
}

// addIndexEnv tells every container its pod's index, unless it sets the variable itself.
func addIndexEnv(template *corev1.PodTemplateSpec) {
	add := func(containers []corev1.Container) {
		for i := range containers {
			c := &containers[i]
			if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == indexEnv }) {
				continue
			}
			c.Env = append(c.Env, corev1.EnvVar{Name: indexEnv, ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation)},
			}})
		}
	}
	add(template.Spec.InitContainers)
	add(template.Spec.Containers)
}

// forIndex is the template of the pod with this index.
func (r *run) forIndex(template *corev1.PodTemplateSpec, index int) *corev1.PodTemplateSpec {
	template = template.DeepCopy()
	if template.Annotations == nil {
		template.Annotations = map[string]string{}
	}
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	template.Annotations[batchv1.JobCompletionIndexAnnotation] = strconv.Itoa(index)
	template.Labels[batchv1.JobCompletionIndexAnnotation] = strconv.Itoa(index)
	template.Spec.Hostname = fmt.Sprintf("%s-%d", r.job.Name, index)
	if r.perIndex() {
		counted, ignored := int32(0), int32(0)
		if former := r.kept[index]; former != nil {
			counted = failures(former, batchv1.JobIndexFailureCountAnnotation)
			ignored = failures(former, batchv1.JobIndexIgnoredFailureCountAnnotation)
			if r.matchFailure(former).counts {
				counted++
			} else {
				ignored++
			}
		}
		template.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(int(counted))
		if ignored > 0 {
			template.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(int(ignored))
		}
	}
	return template
}

// namePrefix is what the name of a pod with this index starts with: the Job's name, cut if need be,
// and the index.
func namePrefix(job string, index int) string {
	suffix := "-" + strconv.Itoa(index) + "-"
	return job[:min(len(job), names.MaxGeneratedNameLength-len(suffix))] + suffix
}
