package catalog

import (
	"encoding/json"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func FuzzIndexEntry(f *testing.F) {
	f.Add([]byte(`{"digest":"` + string(digest.FromString("x")) + `","size":1,"annotations":{}}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		var desc ocispec.Descriptor
		if json.Unmarshal(data, &desc) == nil {
			_, _ = parseIndexEntry(desc)
		}
	})
}
