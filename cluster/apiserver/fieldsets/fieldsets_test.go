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
	"k8s.io/apimachinery/pkg/util/intstr"
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
	podKind: &core.Pod{},
	corev1.SchemeGroupVersion.WithKind("Binding"): &core.Binding{},
	corev1.SchemeGroupVersion.WithKind("Event"):   &core.Event{},
	eventsv1.SchemeGroupVersion.WithKind("Event"): &core.Event{},
}

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// types are all types of the built-in API.
func types() *openapicommon.OpenAPIV3Config {
	namer := apiopenapi.NewDefinitionNamer(legacyscheme.Scheme)
	return genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
}

func sets(t testing.TB, kind schema.GroupVersionKind) *Sets {
	t.Helper()
	subresource := ""
	if kind.Kind == "Binding" {
		subresource = "binding"
	}
	s, err := New(kind, subresource, kinds[kind], legacyscheme.Scheme, types(), nil)
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
	s, pod := sets(b, podKind), webPod()
	b.Run("known", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			pod.ManagedFields = nil
			shape, err := s.Set(pod, "manager", time.Now())
			if err != nil {
				b.Fatal(err)
			}
			s.Keep(shape)
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

// set returns the managed fields of an object without their time, and what was asked for them.
func set(t testing.TB, s *Sets, object runtime.Object) ([]metav1.ManagedFieldsEntry, Shape) {
	t.Helper()
	o := object.DeepCopyObject().(metav1.Object)
	o.SetManagedFields(nil)
	shape, err := s.Set(o, "manager", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	fields := o.GetManagedFields()
	for i := range fields {
		if time.Since(fields[i].Time.Time) > time.Minute {
			t.Errorf("managed since %v", fields[i].Time)
		}
		fields[i].Time = nil
	}
	return fields, shape
}

// FuzzSets makes random objects and changes them: values that make no difference, and whatever it
// hits. What is set, remembered or not, must be what the field manager finds.
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
		random := rand.New(rand.NewSource(seed))
		fill := fuzzer.FuzzerFor(podtesting.FuzzerFuncs, random, legacyscheme.Codecs)
		for _, kind := range names {
			s := all[kind]
			fresh := &Sets{Manager: s.Manager, version: s.version, subresource: s.subresource, blank: s.blank, plan: s.plan}
			check := func(object runtime.Object) (remembered bool) {
				t.Helper()
				got, shape := set(t, s, object)
				if expected, _ := set(t, fresh, object); !reflect.DeepEqual(got, expected) {
					t.Fatalf("%s: %v\ninstead of %v\nfor %v", kind, got, expected, object)
				}
				s.Keep(shape)
				return shape == (Shape{})
			}
			one := reflect.New(reflect.TypeOf(kinds[kind]).Elem()).Interface().(runtime.Object)
			fill.Fill(one)
			one.(metav1.Object).SetManagedFields(nil)
			check(one)
			_, tooLarge := set(t, fresh, one)
			other := one.DeepCopyObject()
			vary(reflect.ValueOf(other).Elem())
			if !check(other) && tooLarge != (Shape{}) {
				t.Fatalf("%s: not remembered: %v, %v", kind, one, other)
			}
			for range 5 {
				hit(random, reflect.ValueOf(other).Elem())
				other.(metav1.Object).SetManagedFields(nil)
				check(other)
			}
		}
	})
}

// hit changes one random value of v, if it finds one.
func hit(random *rand.Rand, v reflect.Value) {
	switch v.Type() {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime](), reflect.TypeFor[resource.Quantity]():
		vary(v)
		return
	case reflect.TypeFor[intstr.IntOrString](): // any other type than these two makes upstream's conversion panic
		v.Set(reflect.ValueOf([]intstr.IntOrString{intstr.FromInt32(1), intstr.FromString("a")}[random.Intn(2)]))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString([]string{"", "a", "b"}[random.Intn(3)])
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(random.Intn(3)))
	case reflect.Pointer:
		switch {
		case v.IsNil():
			v.Set(reflect.New(v.Type().Elem()))
		case random.Intn(4) == 0:
			v.SetZero()
		default:
			hit(random, v.Elem())
		}
	case reflect.Struct:
		if v.NumField() > 0 {
			hit(random, v.Field(random.Intn(v.NumField())))
		}
	case reflect.Map:
		if v.IsNil() || random.Intn(4) == 0 {
			v.Set(reflect.MakeMap(v.Type()))
			return
		}
		v.SetMapIndex(reflect.ValueOf([]string{"a", "b"}[random.Intn(2)]).Convert(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.Slice:
		switch n := v.Len(); {
		case n == 0 || random.Intn(4) == 0:
			v.Set(reflect.MakeSlice(v.Type(), random.Intn(2), 1))
		case random.Intn(3) == 0:
			v.Set(reflect.Append(v, v.Index(random.Intn(n))))
		default:
			hit(random, v.Index(random.Intn(n)))
		}
	default:
		panic(fmt.Sprintf("a %s is not hit", v.Type()))
	}
}

// An object with fields of the client's is left to the field manager, which may take other fields
// for it.
func TestSentFields(t *testing.T) {
	s := sets(t, podKind)
	for name, sent := range map[string]metav1.ManagedFieldsEntry{
		"valid": {
			Manager: "other", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:app":{}}}}`),
		},
		"reset": {}, "not valid": {Manager: "other", Operation: "?"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := webPod()
			pod.ManagedFields = []metav1.ManagedFieldsEntry{sent}
			shape, err := s.Set(pod, "manager", time.Now())
			if err != nil || len(pod.ManagedFields) != 1 || pod.ManagedFields[0].Manager != "manager" || shape != (Shape{}) {
				t.Errorf("%v, to be remembered %v, %v", pod.ManagedFields, shape, err)
			}
		})
	}
}

// What is remembered is bounded, whatever the shapes are.
func TestRoom(t *testing.T) {
	s := sets(t, podKind)
	pod := webPod()
	for i := range 3000 {
		pod.Labels = map[string]string{fmt.Sprintf("%d-%s", i, strings.Repeat("x", 500)): ""}
		_, shape := set(t, s, pod)
		s.Keep(shape)
		s.Keep(shape) // of another request, at the same time
		if _, again := set(t, s, pod); again != (Shape{}) {
			t.Fatalf("%d is not remembered", i)
		}
	}
	size := 0
	for key, fields := range s.known {
		size += len(key) + len(fields)
	}
	if size != s.size || size > keepLimit || size < keepLimit/2 {
		t.Errorf("%d bytes are kept, %d counted", size, s.size)
	}
	pod.Labels = map[string]string{strings.Repeat("x", shapeLimit): ""}
	if fields, shape := set(t, s, pod); len(fields) != 1 || shape != (Shape{}) {
		t.Errorf("a large shape: %v, to be remembered %v", fields, shape)
	}
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
