package compile

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Which policies decide. That Explain agrees with the rules, each test of these checks
// (world.compare).
func TestExplain(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.pod(newPod("x", "far", 60, func(p *corev1.Pod) { p.Spec.NodeName = "there" }))
	w.apply(allowFromB)
	w.take()
	for connection, want := range map[string]string{
		"x/b x/a:80":   "{{true here [] []} {true here [x/p0] [x/p0]}}",
		"x/c x/a:80":   "{{true here [] []} {false here [x/p0] []}}",
		"x/a x/a:80":   "{{true itself [] []} {true itself [] []}}",
		"x/a x/b:80":   "{{true here [] []} {true here [] []}}",
		"x/far x/a:80": "{{true elsewhere [] []} {false here [x/p0] []}}",
	} {
		c, ok := w.connection(connection, 0)
		if !ok {
			t.Fatalf("no connection %s", connection)
		}
		e := w.state.Explain(c)
		half := func(h Half) string {
			return fmt.Sprintf("{%v %s %v %v}", h.Allowed, []string{"no pod", "here", "elsewhere", "itself"}[h.Kind], h.Selecting, h.Allowing)
		}
		if got := "{" + half(e.Egress) + " " + half(e.Ingress) + "}"; got != want {
			t.Errorf("%s: %s, want %s", connection, got, want)
		}
	}
	w.compare()
}
