package integration

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
)

// history is what an informer tells of the ConfigMaps of a namespace. Each has a number that its
// writer counts up, so that an event that is told twice, late or of what never was shows.
type history struct {
	mu     sync.Mutex
	live   map[types.UID]int // the number that was told last
	gone   map[types.UID]bool
	wrong  []string
	events int
	seen   chan string // names, as they are told
}

func (h *history) told(kind string, cm *corev1.ConfigMap) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events++
	n, err := strconv.Atoi(cm.Data["n"])
	if err != nil {
		return // of Kubernetes' own
	}
	last, known := h.live[cm.UID]
	switch {
	case h.gone[cm.UID]:
		h.wrong = append(h.wrong, fmt.Sprintf("%s of %s, which had been deleted", kind, cm.Name))
	case kind == "add" && known:
		h.wrong = append(h.wrong, fmt.Sprintf("%s added twice", cm.Name))
	case kind != "add" && !known:
		h.wrong = append(h.wrong, fmt.Sprintf("%s of %s, which had not been added", kind, cm.Name))
	case kind == "update" && n <= last:
		h.wrong = append(h.wrong, fmt.Sprintf("%s is %d after %d", cm.Name, n, last))
	}
	h.live[cm.UID] = n
	if kind == "delete" {
		h.gone[cm.UID] = true
		delete(h.live, cm.UID)
	}
}

func (h *history) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			h.told("add", obj.(*corev1.ConfigMap))
			h.seen <- obj.(*corev1.ConfigMap).Name
		},
		UpdateFunc: func(old, obj any) {
			// A list after an interruption tells again what has not changed, as the same version.
			if cm := obj.(*corev1.ConfigMap); cm.ResourceVersion != old.(*corev1.ConfigMap).ResourceVersion {
				h.told("update", cm)
			}
		},
		DeleteFunc: func(obj any) {
			if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tomb.Obj // deleted while no one watched
			}
			h.told("delete", obj.(*corev1.ConfigMap))
		},
	}
}

// drain receives until it is stopped.
func drain[T any](ch <-chan T) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ch:
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-ended }
}

// insist does a write until the server has taken or refused it: while it is away, no one answers.
func insist(ctx context.Context, write func() (*corev1.ConfigMap, error)) (*corev1.ConfigMap, error) {
	var cm *corev1.ConfigMap
	var err error
	for ctx.Err() == nil {
		if cm, err = write(); err == nil || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
			break
		}
		select { // a client's back-off
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return cm, err
}

// An informer that runs while the cluster process is killed again and again, under load, sees every
// object, in order, and ends with what the server holds; and what the server has acknowledged, it
// still holds, with the same resourceVersion.
func TestInformersAcrossKills(t *testing.T) {
	ctx, ns := namespace(t)
	maps := boat.kube.CoreV1().ConfigMaps(ns)

	h := &history{live: map[types.UID]int{}, gone: map[types.UID]bool{}, seen: make(chan string, 100_000)}
	factory := informers.NewSharedInformerFactoryWithOptions(boat.kube, 0, informers.WithNamespace(ns))
	informer := factory.Core().V1().ConfigMaps()
	if _, err := informer.Informer().AddEventHandler(h.handler()); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	const writers = 8
	kills, quit := context.WithCancel(ctx)
	defer quit()
	var mu sync.Mutex
	kept := map[string]*corev1.ConfigMap{} // as the server has acknowledged them
	removed := map[string]bool{}
	finished := make(chan string) // objects
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for round := 0; kills.Err() == nil; round++ {
				name := fmt.Sprintf("w%d-%d", w, round)
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
				for n := range 5 {
					cm.Data = map[string]string{"n": strconv.Itoa(n)}
					next, err := insist(ctx, func() (*corev1.ConfigMap, error) {
						if n == 0 {
							return maps.Create(ctx, cm, metav1.CreateOptions{})
						}
						return maps.Update(ctx, cm, metav1.UpdateOptions{})
					})
					if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
						// The server had taken it, and was killed before it said so.
						next, err = insist(ctx, func() (*corev1.ConfigMap, error) { return maps.Get(ctx, name, metav1.GetOptions{}) })
						if err == nil && next.Data["n"] != cm.Data["n"] {
							t.Errorf("%s is %s; no one but us writes it, and we wrote %s", name, next.Data["n"], cm.Data["n"])
						}
					}
					if err != nil {
						t.Errorf("%s: %v", name, err)
						return
					}
					cm = next
				}
				gone := round%3 == 0
				if gone {
					_, err := insist(ctx, func() (*corev1.ConfigMap, error) { return nil, maps.Delete(ctx, name, metav1.DeleteOptions{}) })
					if err != nil && !apierrors.IsNotFound(err) {
						t.Errorf("delete %s: %v", name, err)
						return
					}
				}
				mu.Lock()
				if removed[name] = gone; !gone {
					kept[name] = cm
				}
				mu.Unlock()
				select {
				case finished <- name:
				case <-kills.Done():
				}
			}
		})
	}
	for range 2 {
		for range 100 {
			select {
			case <-finished:
			case <-ctx.Done():
				t.Fatal("the writers get nowhere")
			}
		}
		// The kill meets writers at work.
		stop := drain(finished)
		boat.kill(t)
		stop()
	}
	quit()
	wg.Wait()

	// The last thing that is written is the last thing that is told.
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "end"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name := ""; name != "end"; {
		select {
		case name = <-h.seen:
		case <-ctx.Done():
			t.Fatal("the informer never told of the last object")
		}
	}
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cached, err := informer.Lister().ConfigMaps(ns).List(labels.Everything())
	if err != nil {
		t.Fatal(err)
	}
	if len(cached) != len(list.Items) {
		t.Errorf("the informer holds %d objects, the server %d", len(cached), len(list.Items))
	}
	for i := range list.Items {
		cm := &list.Items[i]
		got, err := informer.Lister().ConfigMaps(ns).Get(cm.Name)
		if err != nil || !apiequality.Semantic.DeepEqual(got, cm) {
			t.Errorf("%s: the informer holds %v, %v; the server %v", cm.Name, got, err, cm)
		}
		if removed[cm.Name] {
			t.Errorf("%s is there, and its deletion had been acknowledged", cm.Name)
		}
		if last := kept[cm.Name]; last != nil && (last.ResourceVersion != cm.ResourceVersion || last.UID != cm.UID) {
			t.Errorf("%s is version %s of %s, and %s of %s had been acknowledged", cm.Name, cm.ResourceVersion, cm.UID, last.ResourceVersion,
				last.UID)
		}
		delete(kept, cm.Name)
	}
	for name := range kept {
		t.Errorf("%s has been acknowledged and is lost", name)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, wrong := range h.wrong {
		t.Error(wrong)
	}
	t.Logf("%d events of %d objects", h.events, len(removed))
}

// Objects are the same after the kill, to the byte, and optimistic locking goes on from their
// versions.
func TestResourceVersionsAcrossAKill(t *testing.T) {
	ctx, ns := namespace(t)
	maps := boat.kube.CoreV1().ConfigMaps(ns)
	var made []*corev1.ConfigMap
	for i := range 3 {
		cm, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, cm)
	}
	boat.kill(t)
	for _, cm := range made {
		got, err := maps.Get(ctx, cm.Name, metav1.GetOptions{})
		if err != nil || !apiequality.Semantic.DeepEqual(got, cm) {
			t.Errorf("after the kill: %v, %v; before: %v", got, err, cm)
		}
	}
	stale := made[0].DeepCopy()
	made[0].Data = map[string]string{"a": "1"}
	if _, err := maps.Update(ctx, made[0], metav1.UpdateOptions{}); err != nil {
		t.Errorf("update of a version from before the kill: %v", err)
	}
	stale.Data = map[string]string{"a": "2"}
	if _, err := maps.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("second update of the same version: %v, want a conflict", err)
	}
}

// A version that the server has not reached yet is an error that says to ask again, not old data.
func TestAVersionOfTheFuture(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	err := boat.kube.CoreV1().RESTClient().Get().Namespace(ns).Resource("configmaps").MaxRetries(0).
		VersionedParams(&metav1.ListOptions{ResourceVersion: "999999999", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
			scheme.ParameterCodec).
		Do(ctx).Error()
	if wait, ok := apierrors.SuggestsClientDelay(err); !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) || !ok ||
		wait != 1 {
		t.Errorf("%v (%d s)", err, wait)
	}
}
