package attachdetach

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// moves is a story with each write of the controller: a pod's volume is attached, the pod moves to
// another node, and ends. step is called when all is to come to rest.
func (w world) moves(step func(name string)) {
	w.node("a")
	w.node("b")
	w.volume("disk")
	w.volume("share", corev1.ReadWriteMany)
	step("nothing")
	first := w.pod("first", "a", "disk", "share")
	step("wanted")
	w.attacher()
	step("attached")
	w.uses("a", "disk", "share")
	second := w.pod("second", "b", "disk", "share")
	step("wanted by two")
	w.attacher()
	step("shared")
	w.uses("b", "share")
	w.force(first)
	step("first gone")
	w.uses("a")
	step("first unmounted")
	w.attacher()
	step("detached from a")
	w.attacher()
	step("attached to b")
	w.uses("b", "disk", "share")
	w.force(second)
	step("second gone")
	w.uses("b")
	step("second unmounted")
	w.attacher()
	step("detached from b")
}

// state is what the story is about.
func (w world) state() string {
	return fmt.Sprint(w.attachments(), w.reports("a"), w.reports("b"))
}

// The controller is killed at each of its writes in turn: after it was done, and before. One that
// is started then comes to the same state in each step.
func TestKilledAtEachWrite(t *testing.T) {
	var want []string
	run(t, func(w world) {
		w.moves(func(name string) {
			w.Pass(time.Minute)
			want = append(want, name+": "+w.state())
		})
	})
	for _, done := range []bool{true, false} {
		// One write may report two attachments, or two do: a run without a kill is the last.
		reached, killed := 0, true
		for at := 1; killed; at++ {
			var got []string
			run(t, func(w world) {
				crashed, count := false, 0
				if done {
					w.CrashAfter(at)
				} else {
					w.Refuse(func(string, string) error {
						if count++; count >= at {
							crashed = true
							return apierrors.NewServiceUnavailable("killed")
						}
						return nil
					})
				}
				killed = false
				w.moves(func(name string) {
					w.Pass(time.Minute)
					if !killed && (crashed || w.Crashed()) {
						killed = true
						reached++
						w.Refuse(nil)
						w.Restart()
						w.Pass(time.Minute)
					}
					got = append(got, name+": "+w.state())
				})
			})
			if !reflect.DeepEqual(got, want) {
				for i := range got {
					if got[i] != want[i] {
						t.Errorf("killed at write %d (done: %v): %s, want %s", at, done, got[i], want[i])
						break
					}
				}
			}
		}
		if reached < 12 { // 4 attachments are made, reported and deleted
			t.Errorf("done %v: killed at %d writes only", done, reached)
		}
	}
}
