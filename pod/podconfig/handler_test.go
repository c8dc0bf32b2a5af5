package podconfig

import (
	"maps"
	"testing"
)

// However wide the pattern, what steers the runtime has to be named.
func TestSteeringAnnotationsAreNamed(t *testing.T) {
	given := map[string]string{
		"note": "", "run.oci.hooks.stdout": "", "run.oci.handler": "", "org.criu.config": "", "org.systemd.property.CPUQuota": "",
		"module.wasm.image/variant": "", "krun.cpus": "", "dev.gvisor.flag.debug": "", "bundle": "", "org.example.criu": "",
	}
	h := Handler{Annotations: []string{"*", "*/*", "run.oci.*", "[a-z]*.oci.handler", "run.oci.handler"}}
	want := map[string]string{"note": "", "run.oci.handler": "", "org.example.criu": ""}
	for name, got := range map[string]map[string]string{"pod": h.PassedAnnotations(given, nil), "container": h.PassedAnnotations(nil, given)} {
		if !maps.Equal(got, want) {
			t.Errorf("of the %s's annotations %v are passed on, want %v", name, got, want)
		}
	}
}
