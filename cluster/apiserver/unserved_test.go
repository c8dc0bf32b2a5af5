package apiserver

import (
	"context"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"

	"github.com/coracle-project/coracle/cluster/unserved"
)

// AddWarning implements warning.Recorder.
func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

// Regression: a cluster that enforces no policies took them without a word.
func TestPoliciesThatAreLeftToOthers(t *testing.T) {
	for name, test := range map[string]struct {
		further unserved.Kinds
		want    warnings
	}{
		"enforced": {},
		"left to others": {unserved.Policies, warnings{
			`NetworkPolicy "wall" is stored but not acted on by this cluster: with --network-policies=false a network plugin enforces it, or nothing does`,
		}},
	} {
		plugins := admission.NewPlugins()
		registerUnserved(plugins)
		plugin, err := plugins.NewFromPlugins([]string{unservedPlugin}, pluginConfig{}, unservedKinds(unserved.With(test.further)),
			admission.Decorators{})
		if err != nil {
			t.Fatal(err)
		}
		got := warnings(nil)
		request := admission.NewAttributesRecord(&networkingv1.NetworkPolicy{}, nil, networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"),
			"default", "wall",
			schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}, "", admission.Create, nil, false,
			nil)
		err = plugin.(admission.ValidationInterface).Validate(warning.WithWarningRecorder(context.Background(), &got), request, nil)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, warnings %q, want %q", name, err, got, test.want)
		}
	}
}
