package manifest

import (
	"runtime"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/cpu"
)

// PlatformScore says how well a platform fits this machine: 0 not at all, more is
// better. An absent platform fits a little, as the last choice.
func PlatformScore(p *ocispec.Platform) int {
	if p == nil {
		return 1
	}
	return scoreOn(*p, runtime.GOARCH, microLevel())
}

// scoreOn is PlatformScore for a machine of an architecture and micro-architecture level.
func scoreOn(p ocispec.Platform, arch string, level int) int {
	if p.OS != "linux" && p.OS != "" {
		return 0
	}
	gotArch, variant := normalizeArch(p.Architecture, p.Variant)
	if gotArch == "" && p.OS == "" {
		return 1
	}
	if gotArch != arch {
		return 0
	}
	want := 1 // the level that an image without variant needs
	if arch == "arm" {
		want = 7
	}
	if arch == "arm64" {
		want = 8
	}
	if variant != "" {
		if len(variant) != 2 || variant[0] != 'v' || variant[1] < '1' || variant[1] > '9' {
			return 0
		}
		want = int(variant[1] - '0')
	}
	if want > level {
		return 0
	}
	return 1 + want
}

// normalizeArch translates uname's and Debian's names into Go's.
func normalizeArch(arch, variant string) (string, string) {
	switch arch {
	case "x86_64", "x86-64":
		return "amd64", variant
	case "aarch64":
		return "arm64", variant
	case "i386", "i486", "i586", "i686":
		return "386", variant
	case "armhf":
		return "arm", "v7"
	case "armel":
		return "arm", "v6"
	}
	return arch, variant
}

// microLevel is the highest variant this processor runs: x86-64-v1 to v4, armv7, arm64v8.
func microLevel() int {
	switch runtime.GOARCH {
	case "amd64":
		x := cpu.X86
		switch {
		case !(x.HasSSE3 && x.HasSSSE3 && x.HasSSE41 && x.HasSSE42 && x.HasPOPCNT && x.HasCX16):
			return 1
		case !(x.HasAVX && x.HasAVX2 && x.HasBMI1 && x.HasBMI2 && x.HasFMA && x.HasOSXSAVE):
			return 2
		case !(x.HasAVX512F && x.HasAVX512BW && x.HasAVX512CD && x.HasAVX512DQ && x.HasAVX512VL):
			return 3
		}
		return 4
	case "arm":
		return 7
	case "arm64":
		return 8
	}
	return 1
}
