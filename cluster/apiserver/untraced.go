package apiserver

import (
	genericfeatures "k8s.io/apiserver/pkg/features"
	"k8s.io/component-base/featuregate"
)

// untraced are features without spans of requests. Nothing collects them here, and the handler that
// makes them leaves 1.7 kB of garbage for each request, a fortieth of all that there is in a busy
// cluster.
type untraced struct{ featuregate.FeatureGate }

// Enabled implements [featuregate.FeatureGate].
func (u untraced) Enabled(f featuregate.Feature) bool {
	return f != genericfeatures.APIServerTracing && u.FeatureGate.Enabled(f)
}
