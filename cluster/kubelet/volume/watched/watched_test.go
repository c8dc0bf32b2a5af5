package watched

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

func configMap(version, value string) *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cm", ResourceVersion: version},
		Data:       map[string]string{"k": value},
	}
}

var key = Key{ConfigMap, "ns", "cm"}

func value(t *testing.T, r *Ref) string {
	t.Helper()
	obj, err := r.Get(t.Context())
	if apierrors.IsNotFound(err) {
		return err.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*v1.ConfigMap).Data["k"]
}

func watches(kube *fake.Clientset) (n int) {
	for _, a := range kube.Actions() {
		if a.GetVerb() == "watch" {
			n++
		}
	}
	return n
}

func TestRefsShareAWatchAndAreToldOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset(configMap("1", "one"))
		o := New(kube)
		told := [2]int{}
		a, b := o.Hold(key, func() { told[0]++ }), o.Hold(key, func() { told[1]++ })
		if got := value(t, a); got != "one" {
			t.Error(got)
		}
		synctest.Wait()
		if told != [2]int{} {
			t.Error("the first reading is told as a change:", told)
		}
		update := func(version, v string) {
			t.Helper()
			if _, err := kube.CoreV1().ConfigMaps("ns").Update(t.Context(), configMap(version, v), metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		update("2", "two")
		if told != [2]int{1, 0} || value(t, a) != "two" || value(t, b) != "two" {
			t.Error("b has not asked and must not be told:", told)
		}
		if err := kube.CoreV1().ConfigMaps("ns").Delete(t.Context(), "cm", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if told != [2]int{2, 1} || value(t, a) != `configmap "cm" not found` {
			t.Error(told, value(t, a))
		}
		if watches(kube) != 1 {
			t.Error(watches(kube), "watches for one object")
		}
		a.Release()
		b.Release()
		b.Release() // does no harm
		if len(o.held) != 0 {
			t.Error("still held:", o.held)
		}
	})
}

func TestImmutableObjectsAreReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cm := configMap("1", "one")
		cm.Immutable = ptr.To(true)
		o := New(fake.NewClientset(cm))
		r := o.Hold(key, func() { t.Error("an immutable object has changed") })
		if value(t, r) != "one" {
			t.Error(value(t, r))
		}
		synctest.Wait() // ends only when the reflector has: it would otherwise watch for ever
		r2 := o.Hold(key, func() {})
		if value(t, r2) != "one" {
			t.Error(value(t, r2))
		}
		r.Release()
		r2.Release()
	})
}

func TestGetDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		var back atomic.Bool
		kube.PrependReactor("list", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
			if !back.Load() {
				return true, nil, errors.New("forbidden so far")
			}
			return false, nil, nil
		})
		o := New(kube)
		told := make(chan struct{}, 1)
		r := o.Hold(Key{Secret, "ns", "s"}, func() { told <- struct{}{} })
		_, err := r.Get(t.Context())
		if err == nil || err.Error() != "failed to sync secret cache: timed out waiting for the condition" {
			t.Error(err)
		}
		synctest.Wait()
		back.Store(true)
		<-told // what could not be told has become known
		if _, err := r.Get(context.Background()); !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		r.Release()
	})
}

func TestOnceGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := apierrors.NewForbidden(v1.Resource("secrets"), "s", errors.New("no relationship found"))
		for granted, calls := range map[int]int{1: 1, 5: 5, 100: 8} {
			n := 0
			err := OnceGranted(t.Context(), func() error {
				if n++; n < granted {
					return refused
				}
				return nil
			})
			if n != calls || (err != nil) != (granted > calls) {
				t.Errorf("granted at call %d: %d calls, %v", granted, n, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := OnceGranted(ctx, func() error { return refused }); !apierrors.IsForbidden(err) {
			t.Error(err)
		}
	})
}
