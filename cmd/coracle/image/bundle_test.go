package image

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// Half a manifest may be valid: images of the other half would be missing on a machine that cannot
// pull them.
func TestImagesOfALongManifest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod.yaml")
	pod := "spec: {containers: [{image: a}]}\n---\n"
	write := func(length int) {
		t.Helper()
		text := pod + strings.Repeat("\n", length-len(pod))
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(longestManifest)
	if got, err := imagesOf(path); err != nil || !slices.Equal(got, []string{"a"}) {
		t.Errorf("%q, %v", got, err)
	}
	write(longestManifest + 1)
	if got, err := imagesOf(path); err == nil || !strings.Contains(err.Error(), "is larger than") {
		t.Errorf("%q, %v", got, err)
	}
}

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
