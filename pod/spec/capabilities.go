package spec

import (
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/coracle-project/coracle/pod/ocispec"
)

// availableCapabilities are those in the daemon's bounding set: it cannot give more.
var availableCapabilities = sync.OnceValue(func() []string {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return ocispec.DefaultCapabilities() // no /proc: nothing will run anyway
	}
	_, rest, _ := strings.Cut(string(b), "\nCapBnd:\t")
	hex, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
	if err != nil {
		return ocispec.DefaultCapabilities()
	}
	return ocispec.CapabilitiesOf(mask)
})
