package main

import (
	"strings"
	"testing"

	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

func TestPrint(t *testing.T) {
	images := []*imagesv1.Image{{Id: "sha256:1", Tags: []string{"a:1", "b:1"}, Manifest: "sha256:2"}}
	for output, want := range map[string]string{
		"table": "sha256:1   a:1\nsha256:1   b:1\n",
		"json": "[\n  {\n    \"id\": \"sha256:1\",\n    \"tags\": [\n      \"a:1\",\n      \"b:1\"\n    ],\n    \"manifest\": \"sha256:2\"\n " +
			" }\n]\n",
		"yaml": "- id: sha256:1\n  manifest: sha256:2\n  tags:\n  - a:1\n  - b:1\n",
	} {
		var out strings.Builder
		if err := (&settings{output: output}).print(&out, images); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v", output, out.String(), err)
		}
	}
}
