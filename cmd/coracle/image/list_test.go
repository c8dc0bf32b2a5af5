package image

import (
	"bytes"
	"strings"
	"testing"
	"text/tabwriter"

	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

func TestHistory(t *testing.T) {
	image := &imagesv1.Image{Layers: []*imagesv1.Layer{{DiffId: "sha256:a", Bytes: 1}, {DiffId: "sha256:b", Bytes: 2}}}
	for name, tc := range map[string]struct {
		config string
		want   string
	}{
		"as many steps": {
			`{"history":[{"created_by":"ADD"},{"created_by":"ENV","empty_layer":true},{"created_by":"RUN"}]}`,
			"RUN sha256:b|ENV |ADD sha256:a",
		},
		"none":           {`{}`, " sha256:b| sha256:a"},
		"too few layers": {`{"history":[{"created_by":"1"},{"created_by":"2"},{"created_by":"3"}]}`, "3 |2 sha256:b|1 sha256:a"},
	} {
		t.Run(name, func(t *testing.T) {
			steps, err := history(&imagesv1.InspectResponse{Image: image, Configuration: []byte(tc.config)})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range steps {
				got = append(got, s.CreatedBy+" "+s.Layer)
			}
			if strings.Join(got, "|") != tc.want {
				t.Errorf("steps %q, want %q", got, tc.want)
			}
		})
	}
	if _, err := history(&imagesv1.InspectResponse{Configuration: []byte("{")}); err == nil {
		t.Error("a broken configuration is none")
	}
}

func TestTree(t *testing.T) {
	l := func(id string) layer { return layer{DiffID: "sha256:" + strings.Repeat(id, 64), Bytes: 1000} }
	forest := grow([]picture{
		{ID: "1", Tags: []string{"a:1", "a:2"}, Layers: []layer{l("a"), l("b")}, Frees: 1000},
		{ID: "2", Tags: []string{"b:1"}, Layers: []layer{l("a")}},
		{ID: "3", Digests: []string{"c@sha256:x"}},
	})
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 1, ' ', 0)
	treeRows(w, forest)
	_ = w.Flush()
	const want = `a:1, a:2        2kB removing frees 1kB
├─ aaaaaaaaaaaa 1kB shared with b:1
└─ bbbbbbbbbbbb 1kB 
b:1             1kB removing frees 0B
└─ aaaaaaaaaaaa 1kB shared with a:1
c@sha256:x      0B  removing frees 0B
`
	if out.String() != want {
		t.Errorf("tree\n%s\nwant\n%s", out.String(), want)
	}
}
