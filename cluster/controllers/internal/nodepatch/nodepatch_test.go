package nodepatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// api notes patches, and refuses those that contain refused with an error.
type api struct {
	typedcorev1.NodeInterface
	refused string
	err     error // errRefused if nil
	// panicWith has the first patch that contains it panic, unless it is empty.
	panicWith string

	mu      sync.Mutex
	patches []string
}

var errRefused = errors.New("refused")

func (a *api) Patch(ctx context.Context, name string, _ types.PatchType, patch []byte, _ metav1.PatchOptions, _ ...string,
) (*corev1.Node, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.patches = append(a.patches, name+" "+string(patch))
	if panics := a.panicWith; panics != "" && strings.Contains(string(patch), panics) {
		a.panicWith = ""
		panic(panics)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if a.refused != "" && strings.Contains(string(patch), a.refused) {
		return nil, cmp.Or(a.err, errRefused)
	}
	return nil, nil
}

// threeChanges are what controllers write to a node that joins.
func threeChanges() []Change {
	return []Change{
		{ResourceVersion: "7", Labels: map[string]string{"old": "linux"}, Taints: &[]corev1.Taint{}},
		{UID: "u", PodCIDRs: []string{"10.0.0.0/24", "fd00::/64"}},
		{Annotations: map[string]string{"ttl": "15"}, Patient: true},
	}
}

// applyAll makes changes at the same time, and returns their errors.
func applyAll(w *Writer, name string, changes []Change) []error {
	errs := make([]error, len(changes))
	var all sync.WaitGroup
	for i, c := range changes {
		all.Go(func() { errs[i] = w.Apply(context.Background(), name, c) })
		synctest.Wait()
	}
	all.Wait()
	return errs
}

// fill has a writer see many nodes, and forgets their patches.
func fill(t *testing.T, w *Writer, a *api) {
	t.Helper()
	for i := range busyRequests {
		if err := w.Apply(t.Context(), fmt.Sprintf("other-%d", i), Change{PodCIDRs: []string{"10.1.0.0/24"}}); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.patches) != busyRequests {
		t.Fatalf("few nodes are written in %d requests: %q", len(a.patches), a.patches)
	}
	a.patches = nil
}

func TestChangesOfOneNodeAreOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		w := New(a)
		fill(t, w, a)
		if err := errors.Join(applyAll(w, "n", threeChanges())...); err != nil {
			t.Fatal(err)
		}
		want := `n {"metadata":{"uid":"u","resourceVersion":"7","labels":{"old":"linux"},"annotations":{"ttl":"15"}},` +
			`"spec":{"taints":[],"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24","fd00::/64"]}}`
		if !slices.Equal(a.patches, []string{want}) {
			t.Errorf("sent %q, want %q", a.patches, want)
		}
		if len(w.waiting) > 0 {
			t.Errorf("%d requests are left", len(w.waiting))
		}
	})
}

// A change that nothing waits for waits for others, which do not wait as long.
func TestPatientChangesComeLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		w := New(a)
		fill(t, w, a)
		changes := threeChanges()
		slices.Reverse(changes)
		began := time.Now()
		var all sync.WaitGroup
		for _, c := range changes {
			all.Go(func() {
				if err := w.Apply(t.Context(), "n", c); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(window / 2)
		}
		all.Wait()
		if took := time.Since(began); len(a.patches) != 1 || took > 2*window {
			t.Errorf("sent %q after %v", a.patches, took)
		}
		began = time.Now()
		if err := w.Apply(t.Context(), "n", changes[0]); err != nil || time.Since(began) != patientWindow {
			t.Errorf("alone after %v: %v", time.Since(began), err)
		}
	})
}

// A node that joins alone does not wait.
func TestFewNodesAreWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		w := New(a)
		for i, c := range threeChanges() {
			if err := w.Apply(t.Context(), "n", c); err != nil || len(a.patches) != i+1 {
				t.Errorf("%d requests after change %d: %v", len(a.patches), i, err)
			}
		}
	})
}

// A change that the API server refuses spoils no other.
func TestRefusedChangeFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{refused: "fd00::"}
		w := New(a)
		fill(t, w, a)
		errs := applyAll(w, "n", threeChanges())
		if errs[0] != nil || !errors.Is(errs[1], errRefused) || errs[2] != nil {
			t.Errorf("errors %v", errs)
		}
		if len(a.patches) != 4 {
			t.Errorf("sent %q: want all together, then each alone", a.patches)
		}
	})
}

// A change of a version that the Node no longer has fails at once. It would be refused again.
func TestConflictIsNotTriedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{refused: "resourceVersion", err: apierrors.NewConflict(corev1.Resource("nodes"), "n", errRefused)}
		w := New(a)
		fill(t, w, a)
		errs := applyAll(w, "n", threeChanges())
		if !apierrors.IsConflict(errs[0]) || errs[1] != nil || errs[2] != nil {
			t.Errorf("errors %v", errs)
		}
		if len(a.patches) != 3 {
			t.Errorf("sent %q: want all together, then two alone", a.patches)
		}
	})
}

// Changes of two Nodes that have had the same name are two requests.
func TestAnotherNodeOfTheNameIsNotJoined(t *testing.T) {
	c := Change{UID: "first", PodCIDRs: []string{"10.0.0.0/24"}}
	if c.join(Change{UID: "second", Labels: map[string]string{"a": "1"}}) || len(c.Labels) > 0 {
		t.Errorf("joined to %+v", c)
	}
}

// Two changes of the same field are two requests.
func TestSameFieldIsNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		w := New(a)
		fill(t, w, a)
		for _, c := range threeChanges() {
			if both := c; both.join(c) {
				t.Errorf("%+v was joined with itself", c)
			}
			a.patches = nil
			if err := errors.Join(applyAll(w, "n", []Change{c, c})...); err != nil || len(a.patches) != 2 {
				t.Errorf("sent %q: %v", a.patches, err)
			}
		}
		if len(w.waiting) > 0 {
			t.Errorf("%d requests are left", len(w.waiting))
		}
	})
}

// The controller whose change came first may end before it is sent.
func TestOthersGoOnWithoutTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		w := New(a)
		fill(t, w, a)
		ctx, stop := context.WithCancel(t.Context())
		changes := threeChanges()
		first := make(chan error, 1)
		go func() { first <- w.Apply(ctx, "n", changes[0]) }()
		synctest.Wait()
		second := make(chan error, 1)
		go func() { second <- w.Apply(t.Context(), "n", changes[1]) }()
		synctest.Wait()
		stop()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the first says %v", err)
		}
		if err := <-second; err != nil {
			t.Errorf("the second says %v", err)
		}
	})
}

// A panic while a request is sent is its sender's: the others send their changes alone.
func TestOthersGoOnAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		w := New(a)
		fill(t, w, a)
		changes := threeChanges()
		first := make(chan any, 1)
		go func() {
			defer func() { first <- recover() }()
			a.panicWith = "fd00::" // what the second change sets
			_ = w.Apply(t.Context(), "n", changes[0])
		}()
		synctest.Wait()
		second := make(chan error, 1)
		go func() {
			err := w.Apply(t.Context(), "n", changes[1])
			second <- err
		}()
		if <-first == nil {
			t.Error("no panic")
		}
		if err := <-second; err != nil {
			t.Errorf("the second says %v", err)
		}
	})
}

func TestJoinLeavesCallersMaps(t *testing.T) {
	a, b := Change{Labels: map[string]string{"a": "1"}}, Change{Labels: map[string]string{"b": "2"}}
	mine := a.Labels
	if !a.join(b) || len(a.Labels) != 2 {
		t.Fatalf("joined to %v", a.Labels)
	}
	if len(mine) != 1 || len(b.Labels) != 1 {
		t.Errorf("the callers' maps are %v and %v", mine, b.Labels)
	}
}
