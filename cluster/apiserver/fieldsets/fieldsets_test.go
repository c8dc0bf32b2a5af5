package fieldsets

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podtesting "k8s.io/kubernetes/pkg/api/testing"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
)

// kinds are those that the API server uses this package for, with their internal types.
var kinds = map[schema.GroupVersionKind]runtime.Object{
	corev1.SchemeGroupVersion.WithKind("Pod"):     &core.Pod{},
	corev1.SchemeGroupVersion.WithKind("Event"):   &core.Event{},
	eventsv1.SchemeGroupVersion.WithKind("Event"): &core.Event{},
}

// types are all types of the built-in API.
func types() *openapicommon.OpenAPIV3Config {
	namer := apiopenapi.NewDefinitionNamer(legacyscheme.Scheme)
	return genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
}

func sets(t testing.TB, kind schema.GroupVersionKind) *Sets {
	t.Helper()
	s, err := New(kind, "", kinds[kind], legacyscheme.Scheme, types(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func BenchmarkNew(b *testing.B) {
	types := types()
	b.ReportAllocs()
	for b.Loop() {
		for kind := range kinds {
			if _, err := New(kind, "", kinds[kind], legacyscheme.Scheme, types, nil); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func webPod() *core.Pod {
	return &core.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "web-", Labels: map[string]string{"app": "web", "pod-template-hash": "76"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "123"}},
		},
		Spec: core.PodSpec{
			Containers: []core.Container{{
				Name: "web", Image: "web:1", Env: []core.EnvVar{{Name: "A", Value: "b"}},
				Resources: core.ResourceRequirements{Requests: core.ResourceList{core.ResourceCPU: resource.MustParse("100m")}},
			}},
			SecurityContext: &core.PodSecurityContext{},
		},
	}
}

func BenchmarkSet(b *testing.B) {
	s, pod := sets(b, corev1.SchemeGroupVersion.WithKind("Pod")), webPod()
	b.Run("known", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			pod.ManagedFields = nil
			if err := s.Set(pod, "manager", time.Now()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("found", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			pod.ManagedFields = nil
			if err := s.find(pod, "manager"); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// set returns the managed fields of an object without their time.
func set(t testing.TB, s *Sets, object runtime.Object) []metav1.ManagedFieldsEntry {
	t.Helper()
	o := object.DeepCopyObject().(metav1.Object)
	o.SetManagedFields(nil)
	if err := s.Set(o, "manager", time.Now()); err != nil {
		t.Fatal(err)
	}
	fields := o.GetManagedFields()
	for i := range fields {
		if time.Since(fields[i].Time.Time) > time.Minute {
			t.Errorf("managed since %v", fields[i].Time)
		}
		fields[i].Time = nil
	}
	return fields
}

// FuzzSets makes an object of chance, changes values that should make no difference, and compares
// the fields that are remembered with those that the field manager finds.
func FuzzSets(f *testing.F) {
	all := map[schema.GroupVersionKind]*Sets{}
	var names []schema.GroupVersionKind
	for kind := range kinds {
		all[kind] = sets(f, kind)
		names = append(names, kind)
	}
	slices.SortFunc(names, func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) })
	for seed := range int64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		fill := fuzzer.FuzzerFor(podtesting.FuzzerFuncs, rand.NewSource(seed), legacyscheme.Codecs)
		for _, kind := range names {
			s := all[kind]
			one := reflect.New(reflect.TypeOf(kinds[kind]).Elem()).Interface().(runtime.Object)
			fill.Fill(one)
			one.(metav1.Object).SetManagedFields(nil)
			other := one.DeepCopyObject()
			vary(reflect.ValueOf(other).Elem())
			if reflect.DeepEqual(one, other) {
				t.Fatal("nothing was changed")
			}
			found := set(t, s, one)
			before := s.Len()
			remembered := set(t, s, other)
			if s.Len() != before {
				t.Fatalf("%s: not remembered: %v, %v", kind, one, other)
			}
			fresh := &Sets{Manager: s.Manager, version: s.version, blank: s.blank, plan: s.plan}
			if expected := set(t, fresh, other); !reflect.DeepEqual(remembered, expected) || !reflect.DeepEqual(found, expected) {
				t.Fatalf("%s: remembered %v, expected %v", kind, remembered, expected)
			}
		}
	})
}

// vary changes the values that are set, but for those in lists. What is set stays set.
func vary(v reflect.Value) {
	switch v.Type() {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		at := v.FieldByName("Time")
		if was := at.Interface().(time.Time); !was.IsZero() {
			at.Set(reflect.ValueOf(was.Add(time.Hour)))
		}
		return
	case reflect.TypeFor[resource.Quantity]():
		if q := v.Addr().Interface().(*resource.Quantity); !q.IsZero() {
			q.Add(*q)
		}
		return
	}
	switch v.Kind() {
	case reflect.String:
		if v.Len() > 0 {
			v.SetString(v.String() + "x")
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		if v.Int() > 1 {
			v.SetInt(v.Int() - 1)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			vary(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			vary(v.Field(i))
		}
	case reflect.Map:
		for _, name := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(name))
			vary(value)
			v.SetMapIndex(name, value)
		}
	case reflect.Bool, reflect.Slice:
	default:
		panic(fmt.Sprintf("a %s is not varied", v.Type()))
	}
}
