package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const wantedType = "application/x-signature"

// list is an answer with referrers named by type/name.
func list(names ...string) []byte {
	var index ocispec.Index
	for _, name := range names {
		kind, _, _ := strings.Cut(name, "/")
		if kind == "wanted" {
			kind = wantedType
		}
		index.Manifests = append(index.Manifests, ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageManifest, ArtifactType: kind, Digest: digest.FromString(name), Size: 1,
		})
	}
	data, err := json.Marshal(index)
	if err != nil {
		panic(err)
	}
	return data
}

func TestReferrers(t *testing.T) {
	image := digest.FromString("image")
	api, tag := "/v2/team/app/referrers/"+image.String(), "/v2/team/app/manifests/sha256-"+image.Encoded()
	next := func(to string) string { return "<" + to + `>; rel="next"` }
	type answer struct {
		body     []byte
		mimeType string
		link     string
	}
	of := func(link string, names ...string) answer {
		return answer{list(names...), ocispec.MediaTypeImageIndex, link}
	}
	for name, tc := range map[string]struct {
		answers map[string]answer // by path, and last=… of the query
		want    []string
	}{
		"none":                      {nil, nil},
		"by the API":                {map[string]answer{api: of("", "wanted/1"), tag: of("", "wanted/3")}, []string{"wanted/1"}},
		"by the tag":                {map[string]answer{tag: of("", "wanted/1")}, []string{"wanted/1"}},
		"a registry without filter": {map[string]answer{api: of("", "sbom/1", "wanted/1", "/2")}, []string{"wanted/1", "/2"}},
		"a tag has all":             {map[string]answer{tag: of("", "sbom/1", "wanted/1")}, []string{"wanted/1"}},
		"pages": {map[string]answer{
			api:             of(next("https://elsewhere.example"+api+"?last=1"), "wanted/1"),
			api + " last=1": of(`<x>; rel="prev", `+next(api+"?last=2&ns=x"), "wanted/2"),
			api + " last=2": of(next("/v2/other/manifests/x"), "wanted/3"),
		}, []string{"wanted/1", "wanted/2", "wanted/3"}},
		"a page for people": {map[string]answer{
			api: {[]byte("<html>"), "text/html", ""}, tag: of("", "wanted/1"),
		}, []string{"wanted/1"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				path := r.URL.Path
				if last := r.URL.Query().Get("last"); last != "" {
					path += " last=" + last
				}
				a, ok := tc.answers[path]
				if !ok {
					return false
				}
				w.Header().Set("Content-Type", a.mimeType)
				if a.link != "" {
					w.Header().Set("Link", a.link)
				}
				_, _ = w.Write(a.body)
				return true
			}
			got, err := repository(t, client(t, Config{}, "", ""), f.host(), Auth{}).Referrers(t.Context(), image, wantedType)
			must(t, err)
			var want []digest.Digest
			for _, name := range tc.want {
				want = append(want, digest.FromString(name))
			}
			var digests []digest.Digest
			for _, d := range got {
				digests = append(digests, d.Digest)
			}
			if fmt.Sprint(digests) != fmt.Sprint(want) {
				t.Errorf("%d referrers: %v; want %v", len(got), got, tc.want)
			}
		})
	}
}

// A list may not go on for ever.
func TestReferrersWithoutEnd(t *testing.T) {
	f := newFake(t)
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
		w.Header().Set("Link", "<"+r.URL.Path+`?last=1>; rel="next"`)
		_, _ = w.Write(list("wanted/1"))
		return true
	}
	_, err := repository(t, client(t, Config{}, "", ""), f.host(), Auth{}).Referrers(t.Context(), digest.FromString("image"), wantedType)
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "more than 16 pages") {
		t.Error(err)
	}
	if n := len(f.asked()); n != maxPages {
		t.Errorf("%d requests", n)
	}
}
