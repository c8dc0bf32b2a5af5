package apiserver

import (
	"testing"

	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

func TestRequestsAreUntraced(t *testing.T) {
	gate := (&build{options: &Options{}}).quiet(&genericapiserver.Config{FeatureGate: utilfeature.DefaultFeatureGate}).FeatureGate
	for f := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		want := utilfeature.DefaultFeatureGate.Enabled(f)
		if f == genericfeatures.APIServerTracing {
			if !want {
				t.Error("upstream does not trace requests any more: there is nothing to leave out")
			}
			want = false
		}
		if got := gate.Enabled(f); got != want {
			t.Errorf("%s: %t, want %t", f, got, want)
		}
	}
}
