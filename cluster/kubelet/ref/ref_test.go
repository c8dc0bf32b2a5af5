package ref

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestContainer(t *testing.T) {
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = "p", "ns", "u"
	p.Spec.Containers = []v1.Container{{Name: "a"}}
	p.Spec.InitContainers = []v1.Container{{Name: "i"}}
	for c, want := range map[*v1.Container]string{
		&p.Spec.Containers[0]:     "spec.containers{a}",
		&p.Spec.InitContainers[0]: "spec.initContainers{i}",
		{Name: "other"}:           "implicitly required container other", // upstream's words for an unknown one
	} {
		r := Container(p, c)
		if r.FieldPath != want || r.Kind != "Pod" || r.Name != "p" || r.UID != "u" {
			t.Errorf("%s: %+v", c.Name, r)
		}
	}
}
