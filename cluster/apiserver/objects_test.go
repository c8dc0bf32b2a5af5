package apiserver

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// namespace makes a namespace for one test, and its default service account, which a controller
// would make.
func namespace(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	n, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := client.CoreV1().ServiceAccounts(n.Name).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return n.Name
}

// atEnd undoes what a test made besides its namespace, so that it can run again on the same
// server.
func atEnd(t *testing.T, undo func(context.Context) error) {
	t.Helper()
	t.Cleanup(func() {
		if err := undo(context.Background()); err != nil { // the test's own context has ended
			t.Error(err)
		}
	})
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "test"}}, Data: data}
}

func TestObjectsOverTLSAndInProcess(t *testing.T) {
	for name, client := range map[string]*kubernetes.Clientset{
		"JSON over TLS": clientOf(t, overTLS(t)), "JSON in process": admin(t),
		"protobuf in process": clientOf(t, protobuf(server.ClientConfig("admin", "system:masters"))),
		"protobuf over TLS":   clientOf(t, protobuf(overTLS(t))),
	} {
		t.Run(name, func(t *testing.T) {
			maps := client.CoreV1().ConfigMaps(namespace(t, client))
			events, err := maps.Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer events.Stop()
			made, err := maps.Create(t.Context(), configMap("a", map[string]string{"k": "1"}), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := maps.Create(t.Context(), configMap("a", nil), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
				t.Errorf("made twice: %v", err)
			}
			changed := made.DeepCopy()
			changed.Data["k"] = "2"
			if _, err = maps.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err = maps.Update(t.Context(), changed, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
				t.Errorf("update of an old version: %v", err)
			}
			if _, err := maps.Create(t.Context(), configMap("dry", nil), metav1.CreateOptions{DryRun: []string{"All"}}); err != nil {
				t.Errorf("dry run: %v", err)
			}
			other := types.UID("other")
			err = maps.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}})
			if !apierrors.IsConflict(err) {
				t.Errorf("delete of another object's UID: %v", err)
			}
			if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
				if e := <-events.ResultChan(); e.Type != want || e.Object.(*corev1.ConfigMap).Name != "a" {
					t.Errorf("event %s %v, want %s", e.Type, e.Object, want)
				}
			}
			if _, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("get after delete: %v", err)
			}
		})
	}
}

func TestListsInPiecesAndBySelector(t *testing.T) {
	client := admin(t)
	maps := client.CoreV1().ConfigMaps(namespace(t, client))
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		if _, err := maps.Create(t.Context(), configMap(name, nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var names, more string
	for pieces := 0; pieces == 0 || more != ""; pieces++ {
		list, err := maps.List(t.Context(), metav1.ListOptions{Limit: 2, Continue: more})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list.Items {
			names += m.Name
		}
		more = list.Continue
	}
	if names != "abcde" {
		t.Errorf("pieces amount to %q", names)
	}
	for _, test := range []struct {
		options metav1.ListOptions
		want    int
	}{
		{metav1.ListOptions{LabelSelector: "app=test"}, 5},
		{metav1.ListOptions{LabelSelector: "app!=test"}, 0},
		{metav1.ListOptions{FieldSelector: "metadata.name=c"}, 1},
		{metav1.ListOptions{ResourceVersion: "0"}, 5},
	} {
		if list, err := maps.List(t.Context(), test.options); err != nil || len(list.Items) != test.want {
			t.Errorf("%+v: %d items, %v", test.options, len(list.Items), err)
		}
	}
}

func TestWatchBeginsWithWhatThereIs(t *testing.T) {
	client := admin(t)
	maps := client.CoreV1().ConfigMaps(namespace(t, client))
	if _, err := maps.Create(t.Context(), configMap("first", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	events, err := maps.Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	if e := <-events.ResultChan(); e.Type != watch.Added {
		t.Errorf("first event %+v", e)
	}
	e := <-events.ResultChan()
	if e.Type != watch.Bookmark || e.Object.(*corev1.ConfigMap).Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("second event %+v", e)
	}
	if _, err := maps.Create(t.Context(), configMap("second", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-events.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).Name != "second" {
		t.Errorf("third event %+v", e)
	}
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image:1"}, {Name: "side", Image: "image:1"}}},
			},
		},
	}
}

func TestPatches(t *testing.T) {
	client := admin(t)
	deployments := client.AppsV1().Deployments(namespace(t, client))
	made, err := deployments.Create(t.Context(), deployment("web"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *made.Spec.Replicas != 1 || made.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || len(made.ManagedFields) == 0 {
		t.Errorf("defaults are missing: %+v", made)
	}
	for _, test := range []struct {
		kind  types.PatchType
		patch string
		check func(*appsv1.Deployment) bool
	}{
		{
			types.JSONPatchType, `[{"op":"replace","path":"/spec/replicas","value":3}]`,
			func(d *appsv1.Deployment) bool { return *d.Spec.Replicas == 3 },
		},
		{
			types.MergePatchType, `{"metadata":{"labels":{"x":"y"}}}`,
			func(d *appsv1.Deployment) bool { return d.Labels["x"] == "y" },
		},
		{
			types.StrategicMergePatchType, `{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"image:2"}]}}}}`,
			func(d *appsv1.Deployment) bool {
				c := d.Spec.Template.Spec.Containers
				return len(c) == 2 && c[0].Image == "image:1" && c[1].Image == "image:2"
			},
		},
	} {
		d, err := deployments.Patch(t.Context(), "web", test.kind, []byte(test.patch), metav1.PatchOptions{})
		if err != nil || !test.check(d) {
			t.Errorf("%s: %v, %+v", test.kind, err, d)
		}
	}
	scale, err := deployments.GetScale(t.Context(), "web", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 3 || scale.Status.Selector != "app=web" {
		t.Errorf("scale %+v, %v", scale, err)
	}
	_, err = deployments.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":-1}}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.replicas: Invalid value: -1: must be greater than or equal to 0") {
		t.Errorf("invalid patch: %v", err)
	}
}

// The scheduler relies on it: a pod's next one may have its name.
func TestPatchForAnotherObject(t *testing.T) {
	client := admin(t)
	pods := client.CoreV1().Pods(namespace(t, client))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"metadata":{"uid":"last"},"status":{"message":"m"}}`)
	_, err := pods.Patch(t.Context(), pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if cause, _ := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid); !apierrors.IsInvalid(err) || cause.Field != "metadata.uid" {
		t.Errorf("a patch for another pod: %v", err)
	}
}

func TestServerSideApply(t *testing.T) {
	client := admin(t)
	ns := namespace(t, client)
	deployments := client.AppsV1().Deployments(ns)
	apply := func(manager string, replicas int32, image string, force bool) error {
		labels := map[string]string{"app": "web"}
		d := appsapply.Deployment("web", ns).WithSpec(appsapply.DeploymentSpec().WithReplicas(replicas).
			WithSelector(metaapply.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(coreapply.PodTemplateSpec().WithLabels(labels).WithSpec(coreapply.PodSpec().
				WithContainers(coreapply.Container().WithName("main").WithImage(image)))))
		_, err := deployments.Apply(t.Context(), d, metav1.ApplyOptions{FieldManager: manager, Force: force})
		return err
	}
	if err := apply("one", 2, "image:1", false); err != nil {
		t.Fatal(err)
	}
	err := apply("two", 5, "image:1", false)
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "one": .spec.replicas`) {
		t.Errorf("conflict: %v", err)
	}
	if err := apply("two", 5, "image:1", true); err != nil {
		t.Error(err)
	}
	d, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 5 {
		t.Errorf("after force: %v, %v", d.Spec.Replicas, err)
	}
}

func TestBadObjects(t *testing.T) {
	client := admin(t)
	ns := namespace(t, client)
	post := func(contentType, body string) error {
		return client.CoreV1().RESTClient().Post().Namespace(ns).Resource("configmaps").
			Param("fieldValidation", "Strict").SetHeader("Content-Type", contentType).Body([]byte(body)).Do(t.Context()).Error()
	}
	meta := `"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}`
	for _, test := range []struct {
		name, contentType, body string
		is                      func(error) bool
		says                    string
	}{
		{
			"too large", "application/json", `{` + meta + `,"data":{"a":"` + strings.Repeat("x", 4<<20) + `"}}`,
			apierrors.IsRequestEntityTooLargeError, "limit is",
		},
		{
			"too large for an object", "application/json", `{` + meta + `,"data":{"a":"` + strings.Repeat("x", 2<<20) + `"}}`, apierrors.IsInvalid,
			"Too long: may not be more than 1048576 bytes",
		},
		{"too deep", "application/json", `{` + meta + `,"data":` + strings.Repeat(`{"a":`, 20000), apierrors.IsBadRequest, "exceeded max depth"},
		{"wrong type", "application/json", `{` + meta + `,"data":{"a":1}}`, apierrors.IsBadRequest, "cannot unmarshal number"},
		{"unknown field", "application/json", `{` + meta + `,"dada":{}}`, apierrors.IsBadRequest, `unknown field "dada"`},
		{"no JSON", "application/json", `{"`, apierrors.IsBadRequest, "unexpected end of JSON"},
		{"unknown media type", "application/x-whatever", `{}`, apierrors.IsUnsupportedMediaType, "unknown format"},
		{"damaged protobuf", "application/vnd.kubernetes.protobuf", "k8s\x00\xff\xff\xff", apierrors.IsBadRequest, ""},
		{
			"bad name", "application/json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"A_B"}}`, apierrors.IsInvalid,
			"metadata.name: Invalid value",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := post(test.contentType, test.body); !test.is(err) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %.300v", err)
			}
		})
	}
}

func TestTables(t *testing.T) {
	_, body := get(t, true, "/api/v1/namespaces", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil || table.Kind != "Table" || len(table.Rows) < 4 {
		t.Fatalf("%v: %s", err, body)
	}
	var columns []string
	for _, c := range table.ColumnDefinitions {
		columns = append(columns, c.Name)
	}
	if got := strings.Join(columns, " "); got != "Name Status Age" {
		t.Errorf("columns %s", got)
	}
}

func TestPrivilegedPodsArePodSecuritysToJudge(t *testing.T) {
	client := admin(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "i", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
	}}}}
	free := namespace(t, client)
	if _, err := client.CoreV1().Pods(free).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("in a namespace that forbids nothing: %v", err)
	}
	strict := namespace(t, client)
	label := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	if _, err := client.CoreV1().Namespaces().Patch(t.Context(), strict, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitSeen(t, server.Informers().Core().V1().Namespaces().Informer(), func(obj any) bool {
		ns := obj.(*corev1.Namespace)
		return ns.Name == strict && ns.Labels["pod-security.kubernetes.io/enforce"] != ""
	})
	_, err := client.CoreV1().Pods(strict).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `violates PodSecurity "restricted:latest": privileged`) {
		t.Errorf("in a restricted namespace: %v", err)
	}
}
