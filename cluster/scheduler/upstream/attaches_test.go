package upstream

import (
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	csitrans "k8s.io/csi-translation-lib"
)

// All volumes that drivers have taken over are counted; an upgrade may bring others.
func TestVolumesThatAttach(t *testing.T) {
	drivers, taken := csitrans.New(), 0
	sources := reflect.TypeFor[v1.VolumeSource]()
	for i := range sources.NumField() {
		v := v1.Volume{Name: "v"}
		field := reflect.ValueOf(&v.VolumeSource).Elem().Field(i)
		field.Set(reflect.New(field.Type().Elem()))
		if !drivers.IsInlineMigratable(&v) {
			continue
		}
		taken++
		if !attaches(&v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{v}}}) {
			t.Errorf("a pod with a volume of %s is not counted", sources.Field(i).Name)
		}
	}
	if taken < 5 {
		t.Errorf("drivers have taken over only %d kinds of volumes: this tests nothing", taken)
	}
}
