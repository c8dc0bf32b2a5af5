package image

import (
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestImagesOfManifests(t *testing.T) {
	for name, test := range map[string]struct {
		manifest string
		want     []string
	}{
		"a pod": {"spec: {initContainers: [{image: a}], containers: [{image: b}, {name: none}]}", []string{"a", "b"}},
		"a template in a template": {
			"spec: {jobTemplate: {spec: {template: {spec: {containers: [{image: a}]}}}}}", []string{"a"},
		},
		"a list":            {"items: [{spec: {containers: [{image: a}]}}, {spec: {containers: [{image: b}]}}]", []string{"a", "b"}},
		"an image volume":   {"spec: {volumes: [{image: {reference: a}}, {emptyDir: {}}]}", []string{"a"}},
		"none":              {"kind: ConfigMap", nil},
		"of another shape":  {"containers: {image: a}", nil},
		"text, not objects": {"containers: [a, 1]", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var content any
			if err := yaml.Unmarshal([]byte(test.manifest), &content); err != nil {
				t.Fatal(err)
			}
			got := findImages(content)
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
