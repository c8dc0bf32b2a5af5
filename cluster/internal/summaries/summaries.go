// Package summaries keeps the API server from computing quantiles of how long admission takes.
//
// The metric apiserver_admission_step_admission_duration_seconds_summary, alpha upstream, keeps a
// sample of the last five hours for each kind and verb: 1 MB after a burst of requests. The
// histogram of the same durations stays.
package summaries

import "k8s.io/component-base/metrics"

// Admission is the name of the metric.
const Admission = "apiserver_admission_step_admission_duration_seconds_summary"

// A metric is made, or not, when it is registered, which the package of admission's metrics does in
// its init. Packages are initialized in the order of their paths as soon as what they import is
// ("Package initialization" in the Go specification). So this one comes before k8s.io/apiserver.
func init() { metrics.SetDisabledMetrics([]string{Admission}) }
