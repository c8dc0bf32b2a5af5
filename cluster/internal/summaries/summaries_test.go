package summaries_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/coracle-project/coracle/cluster/internal/summaries"
)

func TestNoSummary(t *testing.T) {
	kind := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	resource := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	a := admission.NewAttributesRecord(nil, nil, kind, "default", "a", resource, "", admission.Create, nil, false, nil)
	admissionmetrics.Metrics.ObserveAdmissionStep(t.Context(), time.Millisecond, false, a, "admit")

	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, f := range families {
		served[f.GetName()] = true
	}
	if !served["apiserver_admission_step_admission_duration_seconds"] {
		t.Error("the histogram is not served")
	}
	if served[summaries.Admission] {
		t.Error("the summary is computed")
	}
}
