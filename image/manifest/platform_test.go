package manifest

import (
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestPlatformScores(t *testing.T) {
	for name, c := range map[string]struct {
		p     ocispec.Platform
		arch  string
		level int
		fits  bool
	}{
		"same":            {ocispec.Platform{OS: "linux", Architecture: "amd64"}, "amd64", 1, true},
		"other name":      {ocispec.Platform{OS: "linux", Architecture: "x86_64"}, "amd64", 1, true},
		"other OS":        {ocispec.Platform{OS: "windows", Architecture: "amd64"}, "amd64", 1, false},
		"other arch":      {ocispec.Platform{OS: "linux", Architecture: "arm64"}, "amd64", 1, false},
		"variant too new": {ocispec.Platform{OS: "linux", Architecture: "amd64", Variant: "v3"}, "amd64", 2, false},
		"variant":         {ocispec.Platform{OS: "linux", Architecture: "amd64", Variant: "v3"}, "amd64", 3, true},
		"arm64 v8":        {ocispec.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}, "arm64", 8, true},
		"arm v6 on v7":    {ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v6"}, "arm", 7, true},
		"armhf":           {ocispec.Platform{OS: "linux", Architecture: "armhf"}, "arm", 7, true},
		"strange variant": {ocispec.Platform{OS: "linux", Architecture: "amd64", Variant: "turbo"}, "amd64", 4, false},
		"nothing said":    {ocispec.Platform{}, "amd64", 1, true},
		"attestation":     {ocispec.Platform{OS: "unknown", Architecture: "unknown"}, "amd64", 1, false},
	} {
		if got := scoreOn(c.p, c.arch, c.level); got > 0 != c.fits {
			t.Errorf("%s: score %d, want fit %v", name, got, c.fits)
		}
	}
	v := func(variant string) int {
		return scoreOn(ocispec.Platform{OS: "linux", Architecture: "amd64", Variant: variant}, "amd64", 3)
	}
	if !(v("v3") > v("v2") && v("v2") > v("") && v("") == v("v1")) {
		t.Error("a better variant does not score higher")
	}
}
