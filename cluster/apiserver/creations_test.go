package apiserver

import (
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/apis/core"
)

// leftToUpstream is JSON for upstream's routes, and another content type for [creations].
const leftToUpstream = "application/json; charset=utf-8"

// creationTest is a request that creates an object.
type creationTest struct {
	name   string
	path   string // "" for pods
	query  string
	accept string
	agent  string
	body   string // %NS% stands for the namespace, %POD% for the pod to be bound
	status int
}

const (
	podSpec = `"spec":{"containers":[{"name":"c","image":"i:1","env":[{"name":"A","value":"1"},{"name":"B","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}],` +
		`"ports":[{"containerPort":80},{"containerPort":80,"protocol":"UDP"}],"resources":{"requests":{"cpu":"100m"}},"volumeMounts":[{"name":"v","mountPath":"/v"}]}],` +
		`"volumes":[{"name":"v","emptyDir":{}}],"tolerations":[{"key":"k","operator":"Exists"}],"securityContext":{"runAsUser":0}}`
	plainPod  = `{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"p-","labels":{"app":"a"},"finalizers":["x.io/y"]},` + podSpec + `}`
	coreEvent = `{"apiVersion":"v1","kind":"Event","metadata":{"generateName":"e-"},"reason":"Tested","message":"m","type":"Normal",` +
		`"involvedObject":{"kind":"Pod","namespace":"%NS%","name":"p"},"firstTimestamp":"2026-01-02T03:04:05Z","source":{"component":"test"}}`
	newEvent = `{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"generateName":"e-"},"reason":"Tested","note":"n","type":"Normal",` +
		`"regarding":{"kind":"Pod","namespace":"%NS%","name":"p"},"eventTime":"2026-01-02T03:04:05.000006Z","action":"Test",` +
		`"reportingController":"test","reportingInstance":"test-1"}`
)

var creationTests = []creationTest{
	{name: "pod", body: plainPod, status: http.StatusCreated},
	{name: "event", path: "events", body: coreEvent, status: http.StatusCreated},
	{name: "new event", path: "new", body: newEvent, status: http.StatusCreated},
	{name: "field manager", body: plainPod, query: "fieldManager=mine", status: http.StatusCreated},
	{name: "no user agent", body: plainPod, agent: "/1.0", status: http.StatusCreated},
	{name: "odd user agent", body: plainPod, agent: "a\tb\u00ad\u00e9 " + strings.Repeat("\u4e16", 50), status: http.StatusCreated},
	{
		name: "managed fields of the client", status: http.StatusCreated,
		body: `{"metadata":{"generateName":"p-","labels":{"app":"a"},"managedFields":[{"manager":"other","operation":"Apply","apiVersion":"v1",` +
			`"time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{"f:app":{}}}}}]},` + podSpec + `}`,
	},
	{
		name: "reset managed fields", status: http.StatusCreated,
		body: `{"metadata":{"generateName":"p-","managedFields":[{}]},` + podSpec + `}`,
	},
	{
		name: "wrong managed fields", status: http.StatusCreated,
		body: `{"metadata":{"generateName":"p-","managedFields":[{"manager":"x","operation":"?"}]},` + podSpec + `}`,
	},
	{
		name: "an owner twice", status: http.StatusCreated,
		body: `{"metadata":{"generateName":"p-","ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"},` +
			`{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]},` + podSpec + `}`,
	},
	{name: "dry run", body: plainPod, query: "dryRun=All", status: http.StatusCreated},
	{name: "table", body: plainPod, accept: "application/json;as=Table;g=meta.k8s.io;v=v1", status: http.StatusCreated},
	{
		name: "only metadata", accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", status: http.StatusCreated,
		body: plainPod,
	},
	{name: "YAML", body: plainPod, accept: "application/yaml", status: http.StatusCreated},
	{name: "unknown format", body: plainPod, accept: "text/css", status: http.StatusNotAcceptable},
	{name: "no JSON", body: "{", status: http.StatusBadRequest},
	{name: "empty", status: http.StatusBadRequest},
	{name: "other kind", body: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}`, status: http.StatusBadRequest},
	{name: "other version", path: "new", body: coreEvent, status: http.StatusBadRequest},
	{
		name: "other namespace", status: http.StatusBadRequest,
		body: strings.Replace(plainPod, `"metadata":{`, `"metadata":{"namespace":"default",`, 1),
	},
	{name: "no name", body: `{"metadata":{},` + podSpec + `}`, status: http.StatusUnprocessableEntity},
	{name: "not valid", body: `{"metadata":{"name":"p"},"spec":{}}`, status: http.StatusUnprocessableEntity},
	{
		name: "unknown field", query: "fieldValidation=Warn", status: http.StatusCreated,
		body: `{"unknown":1,"metadata":{"generateName":"p-"},` + podSpec + `}`,
	},
	{
		name: "refused field", query: "fieldValidation=Strict", status: http.StatusBadRequest,
		body: `{"unknown":1,"metadata":{"generateName":"p-"},` + podSpec + `}`,
	},
	{name: "wrong option", body: plainPod, query: "fieldValidation=x", status: http.StatusUnprocessableEntity},
	{
		name: "binding", path: "binding", status: http.StatusCreated,
		body: `{"metadata":{"name":"%POD%"},"target":{"kind":"Node","name":"n"}}`,
	},
	{
		name: "binding of another", path: "binding", status: http.StatusConflict,
		body: `{"metadata":{"name":"%POD%","uid":"u"},"target":{"kind":"Node","name":"n"}}`,
	},
	{
		name: "binding of none", path: "nobinding", status: http.StatusNotFound,
		body: `{"metadata":{"name":"%POD%"},"target":{"kind":"Node","name":"n"}}`,
	},
	{
		name: "binding to nothing", path: "binding", status: http.StatusInternalServerError,
		body: `{"metadata":{"name":"%POD%"},"target":{"kind":"Node"}}`,
	},
	{
		name: "binding with managed fields", path: "binding", status: http.StatusCreated,
		body: `{"metadata":{"name":"%POD%","managedFields":[{"manager":"x","operation":"?"}]},"target":{"kind":"Node","name":"n"}}`,
	},
	{
		name: "binding of another name", path: "binding", status: http.StatusBadRequest,
		body: `{"metadata":{"name":"x"},"target":{"kind":"Node","name":"n"}}`,
	},
	{
		name: "binding, dry run", path: "binding", query: "dryRun=All", status: http.StatusCreated,
		body: `{"metadata":{"name":"%POD%"},"target":{"kind":"Node","name":"n"}}`,
	},
	{name: "too large", body: `{"metadata":{"name":"` + strings.Repeat("x", 4<<20) + `"}}`, status: http.StatusRequestEntityTooLarge},
}

// Pods and events are created as upstream's routes do it, also those whose fields are remembered.
func TestCreationsAreUpstreams(t *testing.T) {
	ns := namespace(t, admin(t))
	for _, test := range creationTests {
		t.Run(test.name, func(t *testing.T) {
			usual := test.send(t, ns, leftToUpstream)
			if usual.status != test.status {
				t.Fatalf("upstream's handler answers %d: %v", usual.status, usual.body)
			}
			for _, which := range []string{"found", "remembered"} {
				if here := test.send(t, ns, runtime.ContentTypeJSON); !reflect.DeepEqual(here, usual) {
					t.Errorf("%s: %+v\ninstead of %+v", which, here, usual)
				}
			}
		})
	}
}

// creationAnswer is the answer to a creation, without what differs each time.
type creationAnswer struct {
	status   int
	warnings []string
	kind     string
	body     any
}

func (c creationTest) send(t *testing.T, ns, contentType string) creationAnswer {
	t.Helper()
	config := overTLS(t)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	name := "p-none"
	path := "/api/v1/namespaces/" + ns + "/pods"
	switch c.path {
	case "events":
		path = "/api/v1/namespaces/" + ns + "/events"
	case "new":
		path = "/apis/events.k8s.io/v1/namespaces/" + ns + "/events"
	case "nobinding":
		path += "/" + name + "/binding"
	case "binding":
		pod, err := admin(t).CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Annotations: map[string]string{"a": "x"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		name = pod.Name
		path += "/" + name + "/binding"
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, config.Host+path+"?"+c.query,
		strings.NewReader(strings.NewReplacer("%NS%", ns, "%POD%", name).Replace(c.body)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("User-Agent", "test/1.0")
	if c.agent != "" {
		r.Header.Set("User-Agent", c.agent)
	}
	if c.accept != "" {
		r.Header.Set("Accept", c.accept)
	}
	resp, data := answerTo(t, client, r)
	data = generated.ReplaceAll(data, []byte("${1}generated"))
	answer := creationAnswer{status: resp.StatusCode, warnings: resp.Header.Values("Warning"), kind: resp.Header.Get("Content-Type")}
	if err := json.Unmarshal(data, &answer.body); err != nil {
		answer.body = string(data[:min(len(data), 20)]) // YAML, with values that differ later on
		return answer
	}
	alike(answer.body, "")
	return answer
}

// generated are names and UIDs that the API server makes.
var generated = regexp.MustCompile(`\b(p-|e-|kube-api-access-)[b-df-hj-np-tv-xz2-9]{5}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)

// alike replaces what differs from one created object to the next.
func alike(v any, in string) {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			switch text, _ := value.(string); {
			case name == "resourceVersion" || name == "creationTimestamp" || name == "age":
				v[name] = "made"
			case name == "time" && in == "managedFields":
				if at, err := time.Parse(time.RFC3339, text); err == nil && time.Since(at) < patience {
					v[name] = "now"
				}
			default:
				alike(value, name)
			}
		}
	case []any:
		for _, value := range v {
			alike(value, in)
		}
	}
}

// What creations leaves to upstream's routes.
func TestCreationsLeft(t *testing.T) {
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	of := func() *request.RequestInfo {
		return &request.RequestInfo{
			IsResourceRequest: true, Verb: "create", APIVersion: pods.Version, Resource: pods.Resource, Namespace: "default",
			Parts: []string{"pods"},
		}
	}
	tests := map[string]struct {
		change func(r *http.Request, info *request.RequestInfo)
		here   bool
	}{
		"pods": {func(*http.Request, *request.RequestInfo) {}, true},
		"binding": {func(_ *http.Request, i *request.RequestInfo) {
			i.Subresource, i.Name, i.Parts = "binding", "x", []string{"pods", "x", "binding"}
		}, true},
		"below a binding": {func(_ *http.Request, i *request.RequestInfo) {
			i.Subresource, i.Name, i.Parts = "binding", "x", []string{"pods", "x", "binding", "y"}
		}, false},
		"all of a type": {func(r *http.Request, _ *request.RequestInfo) { r.Header.Set("Accept", "application/*") }, false},
		"anything":      {func(r *http.Request, _ *request.RequestInfo) { r.Header.Set("Accept", "application/json, */*") }, true},
		"no pod":        {func(_ *http.Request, i *request.RequestInfo) { i.Subresource = "binding" }, false},
		"eviction":      {func(_ *http.Request, i *request.RequestInfo) { i.Subresource, i.Name = "eviction", "x" }, false},
		"a name":        {func(_ *http.Request, i *request.RequestInfo) { i.Name = "x" }, false},
		"no space":      {func(_ *http.Request, i *request.RequestInfo) { i.Namespace = "" }, false},
		"other verb":    {func(_ *http.Request, i *request.RequestInfo) { i.Verb = "update" }, false},
		"other kind":    {func(_ *http.Request, i *request.RequestInfo) { i.Resource = "secrets" }, false},
		"other group":   {func(_ *http.Request, i *request.RequestInfo) { i.APIGroup = "example.com" }, false},
		"charset":       {func(r *http.Request, _ *request.RequestInfo) { r.Header.Set("Content-Type", leftToUpstream) }, false},
		"YAML":          {func(r *http.Request, _ *request.RequestInfo) { r.Header.Set("Content-Type", "application/yaml") }, false},
		"bad format":    {func(r *http.Request, _ *request.RequestInfo) { r.Header.Set("Accept", "text/css") }, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", runtime.ContentTypeProtobuf)
			info := of()
			test.change(r, info)
			r = r.WithContext(request.WithRequestInfo(r.Context(), info))
			if here := (&creations{creators: &built.creators}).creatorOf(r) != nil; here != test.here {
				t.Errorf("answered here: %v", here)
			}
		})
	}
}

// What is remembered: the fields of what was created, once.
func TestCreationsRemember(t *testing.T) {
	ns := namespace(t, admin(t))
	ours := func(body string) string { // another shape than those of other tests
		return strings.Replace(body, `"metadata":{`, `"metadata":{"annotations":{"`+ns+`":""},`, 1)
	}
	pods := target{corev1.SchemeGroupVersion.WithResource("pods"), ""}
	binding := ours(`{"metadata":{"name":"%POD%"},"target":{"kind":"Node","name":"n"}}`)
	events := target{corev1.SchemeGroupVersion.WithResource("events"), ""}
	newEvents := target{eventsv1.SchemeGroupVersion.WithResource("events"), ""}
	for _, step := range []struct {
		to   target
		test creationTest
		more bool
	}{
		{pods, creationTest{body: ours(plainPod), query: "dryRun=All", status: http.StatusCreated}, false},
		{pods, creationTest{body: strings.Replace(ours(plainPod), `"app":"a"`, `"app":"/"`, 1), status: http.StatusUnprocessableEntity}, false},
		{pods, creationTest{body: ours(plainPod), status: http.StatusCreated}, true},
		{pods, creationTest{body: strings.Replace(ours(plainPod), `"app":"a"`, `"app":"b"`, 1), status: http.StatusCreated}, false},
		{pods, creationTest{body: ours(plainPod), query: "fieldManager=mine", status: http.StatusCreated}, false},
		{pods, creationTest{body: strings.Replace(ours(plainPod), "i:1", "i:2", 1), status: http.StatusCreated}, true}, // of a list
		{target{pods.GroupVersionResource, "binding"}, creationTest{path: "binding", body: binding, status: http.StatusCreated}, true},
		{target{pods.GroupVersionResource, "binding"}, creationTest{path: "binding", body: binding, status: http.StatusCreated}, false},
		{events, creationTest{path: "events", body: ours(coreEvent), status: http.StatusCreated}, true},
		{events, creationTest{path: "events", body: ours(coreEvent), status: http.StatusCreated}, false},
		{newEvents, creationTest{path: "new", body: ours(newEvent), status: http.StatusCreated}, true},
		{newEvents, creationTest{path: "new", body: ours(newEvent), status: http.StatusCreated}, false},
	} {
		fields := built.creators.of[step.to].fields
		before := fields.Len()
		if answer := step.test.send(t, ns, runtime.ContentTypeJSON); answer.status != step.test.status {
			t.Errorf("%s %s: %d", step.test.query, step.test.body, answer.status)
		}
		if more := fields.Len() > before; more != step.more {
			t.Errorf("%s %s: remembered: %v", step.test.query, step.test.body, more)
		}
	}
}

// An object that is too large with its managed fields is created without them.
func TestFieldsAreGivenBackOnce(t *testing.T) {
	pods := target{corev1.SchemeGroupVersion.WithResource("pods"), ""}
	of := built.creators.of[pods]
	it := &creation{Interface: of.admit, creator: of, agent: "test/1"}
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Namespace: namespace(t, admin(t)), Labels: map[string]string{"a": "b"}}}
	err := it.Admit(t.Context(), admission.NewAttributesRecord(pod, nil, of.scope.Kind, pod.Namespace, "", pods.GroupVersionResource, "",
		admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{}), &of.scope)
	if err != nil {
		t.Fatal(err)
	}
	taken := it.taken
	if len(taken) != 1 || taken[0].Manager != "test" || pod.ManagedFields != nil {
		t.Fatalf("taken %v, left %v", taken, pod.ManagedFields)
	}
	if it.giveBack(pod); !reflect.DeepEqual(pod.ManagedFields, taken) {
		t.Errorf("given back: %v", pod.ManagedFields)
	}
	pod.ManagedFields = nil // by upstream's handler
	if it.giveBack(pod); pod.ManagedFields != nil {
		t.Errorf("given back again: %v", pod.ManagedFields)
	}
}
