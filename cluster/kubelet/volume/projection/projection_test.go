package projection

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestNestedMountPoints(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{VolumeMounts: []v1.VolumeMount{
		{Name: "out", MountPath: "/dir"},
		{Name: "a", MountPath: "/dir/nested"},
		{Name: "b", MountPath: "/dir/nested/double"},
		{Name: "c", MountPath: "/dir/nested2/"},
		{Name: "d", MountPath: "/dirty"},
	}}}}}
	if got, err := nestedMountPoints(pod, "out"); err != nil || strings.Join(got, " ") != "nested nested2" {
		t.Error(got, err)
	}
	pod.Spec.Containers[0].VolumeMounts[0].MountPath = "../x"
	if _, err := nestedMountPoints(pod, "out"); err == nil {
		t.Error("took a mount point outside of the container")
	}
}
