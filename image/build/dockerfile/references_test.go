package dockerfile

import (
	"runtime"
	"slices"
	"strings"
	"testing"
)

func TestReferences(t *testing.T) {
	const several = `# syntax=docker/dockerfile:1
ARG BASE=registry.example/base TAG=1
ARG FULL=${BASE}:${TAG}
FROM golang.example/go:1.26 AS Build
RUN --mount=type=bind,from=registry.example/tools:3,target=/tools make
FROM ${FULL} AS middle
COPY --from=build /app /app
FROM unused.example/x AS unused
FROM middle AS last
COPY --from=registry.example/certs:2 /certs /certs
COPY --from=0 /app /again
`
	for _, tc := range []struct {
		name, file, target string
		args               map[string]string
		want               []string
	}{
		{"nothing", "FROM scratch\nCOPY . /\n", "", nil, nil},
		{"one", "FROM a.example/b:1\n", "", nil, []string{"a.example/b:1"}},
		{"all that the last needs", several, "", nil, []string{
			"golang.example/go:1.26", "registry.example/base:1", "registry.example/certs:2", "registry.example/tools:3",
		}},
		{"a target", several, "build", nil, []string{"golang.example/go:1.26", "registry.example/tools:3"}},
		{"a target by number", several, "2", nil, []string{"unused.example/x"}},
		{"arguments", several, "middle", map[string]string{"TAG": "9"}, []string{
			"golang.example/go:1.26", "registry.example/base:9", "registry.example/tools:3",
		}},
		{"set by every build", "FROM x.example/y:$TARGETARCH", "", nil, []string{"x.example/y:" + runtime.GOARCH}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := References([]byte(tc.file), tc.target, tc.args)
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("references %q, %v; want %q", got, err, tc.want)
			}
		})
	}
	for file, says := range map[string]string{
		"": "no instructions", "FROM x.example/y\nRUN --mount=from=$Z,target=/z true": "variable expansion", "RUN x": "no build stage",
		"ARG A\nFROM $A": "names nothing", "FROM ${A": "FROM ${A", "NONSENSE": "NONSENSE", "ARG X=1": "no FROM",
	} {
		if _, err := References([]byte(file), "", nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: error %v, want one that says %q", file, err, says)
		}
	}
	if _, err := References([]byte(several), "none", nil); err == nil || !strings.Contains(err.Error(), `no stage "none"`) {
		t.Error(err)
	}
}

func FuzzReferences(f *testing.F) {
	f.Add("ARG A=1\nFROM x:$A AS b\nFROM b\nCOPY --from=c /a /b\nRUN --mount=from=d,target=/e true\n", "b", "A", "2")
	f.Fuzz(func(t *testing.T, file, target, key, value string) {
		refs, err := References([]byte(file), target, map[string]string{key: value})
		if err == nil && slices.Contains(refs, "") {
			t.Error("an image without a name")
		}
	})
}
