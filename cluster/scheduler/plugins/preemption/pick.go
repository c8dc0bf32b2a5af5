package preemption

import (
	"cmp"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

// pick returns the candidate that hurts least: with the fewest broken budgets; then with the
// lowest of highest priorities; the lowest sum of priorities; the fewest victims; whose most
// important victims started last. Of those that are still equal it takes the first.
func pick(candidates []candidate) candidate {
	now := metav1.NewTime(time.Now())
	return slices.MinFunc(candidates, func(a, b candidate) int {
		return cmp.Or(
			cmp.Compare(a.violations, b.violations),
			cmp.Compare(highest(a), highest(b)),
			cmp.Compare(sum(a), sum(b)),
			cmp.Compare(len(a.victims), len(b.victims)),
			earliest(b, now).Compare(earliest(a, now)),
		)
	})
}

func highest(c candidate) int32 { return corev1helpers.PodPriority(c.victims[0]) }

// sum returns the sum of the victims' priorities, each raised above 0, so that a few more victims
// of negative priority do not look better than fewer.
func sum(c candidate) int64 {
	var n int64
	for _, v := range c.victims {
		n += int64(corev1helpers.PodPriority(v)) + math.MaxInt32 + 1
	}
	return n
}

// earliest returns when the first of the victims of highest priority started.
func earliest(c candidate, now metav1.Time) time.Time {
	first := startOf(c.victims[0], now).Time
	for _, v := range c.victims[1:] {
		if t := startOf(v, now).Time; corev1helpers.PodPriority(v) == highest(c) && t.Before(first) {
			first = t
		}
	}
	return first
}
