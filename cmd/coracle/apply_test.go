package main

import (
	"slices"
	"testing"
)

// Only Deployments become available: waiting for a Service next to one never ended.
func TestDeploymentsOfAManifest(t *testing.T) {
	for name, test := range map[string]struct {
		printed string
		want    []objectName
	}{
		"one Deployment": {`{"kind":"Deployment","metadata":{"name":"web","namespace":"a"}}`, []objectName{{"a", "web"}}},
		"one Service":    {`{"kind":"Service","metadata":{"name":"web","namespace":"a"}}`, nil},
		"several": {
			`{"kind":"List","metadata":{},"items":[{"kind":"Service","metadata":{"name":"web","namespace":"a"}},
			 {"kind":"Deployment","metadata":{"name":"web","namespace":"a"}},{"kind":"Deployment","metadata":{"name":"db","namespace":"b"}}]}`,
			[]objectName{{"a", "web"}, {"b", "db"}},
		},
	} {
		if got, err := deployments([]byte(test.printed)); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, test.want)
		}
	}
}
