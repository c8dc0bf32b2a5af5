//go:build kubelet

package integration

import (
	"os"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

// TestKubeletStaticPods: a kubelet without an API server runs the static pods of
// testdata/kubelet/static, and learns of what happens to them from lists, or from the runtime's
// events. It leaves nothing.
func TestKubeletStaticPods(t *testing.T) {
	configs := map[string]string{"generic PLEG": "", "evented PLEG": "featureGates: {EventedPLEG: true}\n"}
	if os.Getenv("KUBELET_VERSION") != "" {
		// Never on by default, and not complete: that of 1.32 misses starts of sidecars.
		delete(configs, "evented PLEG")
	}
	for name, config := range configs {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, testkit.Options{LogLevel: "info"})
			k := startKubelet(t, n, kubeletOptions{config: config})
			check := k.noLeaks(t)
			runKubeletScripts(t, k, "static", nil)
			check()
		})
	}
}
