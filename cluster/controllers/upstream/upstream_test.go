package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/client"
)

// A controller that cannot be made, panics or ends is made again; one that works is left alone.
func TestFailuresAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		shared := client.NewInformers(kube)
		made, working := 0, false
		c := &OnDemand{
			name: "test", log: slog.New(slog.DiscardHandler), informers: shared, trigger: shared.Core().V1().ConfigMaps().Informer(),
			make: func(context.Context, *gate) (func(context.Context), error) {
				made++
				switch made {
				case 1:
					return nil, errors.New("no")
				case 2:
					panic("cannot be made")
				case 3:
					return func(context.Context) { panic("does not run") }, nil
				case 4:
					return func(context.Context) {}, nil
				}
				return func(ctx context.Context) {
					working = true
					<-ctx.Done()
					working = false
				}, nil
			},
		}
		ctx, end := run(t, c, shared)
		time.Sleep(time.Hour)
		if made != 0 {
			t.Error("it was made without an object")
		}
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default"}}
		if _, err := kube.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if made != 5 || !working {
			t.Errorf("made %d times, working: %v", made, working)
		}
		end()
		if working {
			t.Error("it works on")
		}
	})
}

// The pause grows with each failure. After long work it is short again.
func TestPauseIsShortAfterLongWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		shared := client.NewInformers(kube)
		lasts := []time.Duration{0, 0, 0, 0, 0, 0, worked - time.Second, worked, 0} // how long each works
		var pauses []time.Duration
		var ended time.Time
		c := &OnDemand{
			name: "test", log: slog.New(slog.DiscardHandler), informers: shared, trigger: shared.Core().V1().ConfigMaps().Informer(),
			make: func(context.Context, *gate) (func(context.Context), error) {
				if !ended.IsZero() {
					pauses = append(pauses, time.Since(ended))
				}
				n := len(pauses)
				return func(ctx context.Context) {
					if n >= len(lasts) {
						<-ctx.Done()
						return
					}
					time.Sleep(lasts[n])
					ended = time.Now()
				}, nil
			},
		}
		ctx, end := run(t, c, shared)
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default"}}
		if _, err := kube.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		end()
		var want []time.Duration
		for _, seconds := range []int{1, 2, 4, 8, 16, 32, 64, 1, 2} {
			want = append(want, time.Duration(seconds)*time.Second)
		}
		if !slices.Equal(pauses, want) {
			t.Errorf("the pauses are %v, want %v", pauses, want)
		}
	})
}

// Informers run already when a controller is made. Its handlers are called when it is complete,
// with all that there is, and no more when it has ended.
func TestHandlersWaitForTheConstructor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		shared := client.NewInformers(kube)
		create := func(ctx context.Context, name string) {
			t.Helper()
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
			if _, err := kube.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		seen := [9][2][]string{} // by each handler of each controller
		tries, end := 0, make(chan struct{})
		c := &OnDemand{
			name: "test", log: slog.New(slog.DiscardHandler), informers: shared, trigger: shared.Core().V1().ConfigMaps().Informer(),
			make: func(ctx context.Context, in *gate) (func(context.Context), error) {
				try := tries
				tries++
				informer := in.Core().V1().ConfigMaps().Informer()
				for i, add := range []func(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error){
					informer.AddEventHandler,
					func(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
						return informer.AddEventHandlerWithResyncPeriod(h, time.Minute)
					},
				} {
					if _, err := add(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
						seen[try][i] = append(seen[try][i], obj.(*corev1.ConfigMap).Name)
					}}); err != nil {
						return nil, err
					}
				}
				synctest.Wait()
				if seen[try][0] != nil || seen[try][1] != nil {
					t.Errorf("handlers of one that is not made yet are told of %q", seen[try])
				}
				if try == 0 {
					return nil, errors.New("no")
				}
				return func(ctx context.Context) {
					select {
					case <-end:
					case <-ctx.Done():
					}
				}, nil
			},
		}
		ctx, stop := run(t, c, shared)
		create(ctx, "a")
		time.Sleep(time.Minute)
		create(ctx, "b")
		synctest.Wait()
		close(end) // all further ones end at once
		time.Sleep(500 * time.Millisecond)
		create(ctx, "c")
		synctest.Wait()
		if got := fmt.Sprint(seen[:2]); got != "[[[] []] [[a b] [a b]]]" {
			t.Errorf("the handlers of the one that could not be made, and of the one that ended, were told of %s", got)
		}
		stop()
	})
}

// What runs next to a controller ends with it, also if that ends by itself or panics.
func TestCompanionsEndWithTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		companions := 0
		companion := func(ctx context.Context) {
			companions++
			<-ctx.Done()
			companions--
		}
		with(func(context.Context) {
			synctest.Wait()
			if companions != 1 {
				t.Errorf("%d run", companions)
			}
		}, companion)(t.Context())
		func() {
			defer func() { _ = recover() }()
			with(func(context.Context) { panic("odd object") }, companion)(t.Context())
			t.Error("the panic was swallowed")
		}()
		if companions != 0 {
			t.Errorf("%d run on", companions)
		}
	})
}

// run starts informers and a controller, until end is called, which waits for them.
func run(t *testing.T, c *OnDemand, informers informers.SharedInformerFactory) (ctx context.Context, end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	informers.Start(ctx.Done())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Run(ctx)
	}()
	return ctx, func() {
		stop()
		<-ended
		informers.Shutdown()
	}
}

// A panic in one of the imported controller's goroutines ends neither the process nor the
// controller.
func TestPanicsOfImportedControllersAreSurvived(t *testing.T) {
	apiserver.SurvivePanics()
	kube := fake.NewClientset()
	panicked, written := make(chan struct{}), make(chan string, 10)
	first := true
	kube.PrependReactor("update", "poddisruptionbudgets", func(action ktesting.Action) (bool, runtime.Object, error) {
		budget := action.(ktesting.UpdateAction).GetObject().(*policyv1.PodDisruptionBudget)
		if first {
			first = false
			close(panicked)
			panic("odd budget")
		}
		written <- budget.Name
		return true, budget, nil
	})
	set := &client.Set{Kube: kube, Informers: client.NewInformers(kube), Config: &rest.Config{Host: "http://127.0.0.1:1"}}
	ctx, end := run(t, NewDisruption(set, NewMapper(kube.Discovery())), set.Informers)
	defer end()
	budget := func(name string) {
		t.Helper()
		_, err := kube.PolicyV1().PodDisruptionBudgets("default").Create(ctx, &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Generation: 1},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	limit := time.After(30 * time.Second)
	budget("odd")
	select {
	case <-panicked:
	case <-limit:
		t.Fatal("nothing panicked")
	}
	budget("plain")
	for {
		select {
		case name := <-written:
			if name == "plain" {
				return
			}
		case <-limit:
			t.Fatal("the controller works no more")
		}
	}
}
