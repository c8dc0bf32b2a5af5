package kubelet

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

func TestPodsThatRunAreAdmittedFirstAfterARestart(t *testing.T) {
	now := time.Now()
	pod := func(name string, age time.Duration, edits ...func(*v1.Pod)) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-age))}}
		for _, edit := range edits {
			edit(p)
		}
		return p
	}
	started := func(p *v1.Pod) { p.Status.StartTime = &metav1.Time{Time: now} }
	deleted := func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }
	ended := func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }
	mirror := func(p *v1.Pod) { p.Annotations = map[string]string{kubetypes.ConfigMirrorAnnotationKey: "x"} }
	b := &backlog{}
	var passed []string
	apply := func(p *v1.Pod) { passed = append(passed, p.Name) }
	remove := func(p *v1.Pod) { passed = append(passed, "-"+p.Name) }
	for _, p := range []*v1.Pod{
		pod("waits", time.Hour), pod("waits-longer", 2*time.Hour), pod("runs", time.Minute, started),
		pod("ends", 3*time.Minute, deleted), pod("ended", 2*time.Minute, ended), pod("gone", time.Hour), pod("mirror", 0, mirror),
	} {
		b.apply(p, apply)
	}
	b.remove(pod("gone", time.Hour), remove)
	b.apply(pod("waits-longer", 2*time.Hour), apply) // its newer state
	if got := strings.Join(passed, " "); got != "mirror" {
		t.Errorf("passed before all are known: %q", got)
	}
	b.open(apply)
	b.apply(pod("new", 0), apply)
	b.remove(pod("runs", 0), remove)
	want := []string{"mirror", "ends", "ended", "runs", "waits-longer", "waits", "new", "-runs"}
	if !slices.Equal(passed, want) {
		t.Errorf("passed %v, want %v", passed, want)
	}
}
