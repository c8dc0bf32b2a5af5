package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	registry "k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/coordination"
	"k8s.io/utils/ptr"
)

// nodeLease makes the lease of a node as its kubelet does.
func nodeLease(t *testing.T, config *rest.Config, name string) *coordinationv1.Lease {
	t.Helper()
	lease, err := clientOf(t, config).CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &name, LeaseDurationSeconds: ptr.To(int32(40)), RenewTime: &metav1.MicroTime{Time: time.Now()},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, func(ctx context.Context) error {
		return admin(t).CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, name, metav1.DeleteOptions{})
	})
	return lease
}

func later(lease *coordinationv1.Lease, by time.Duration) *coordinationv1.Lease {
	lease = lease.DeepCopy()
	lease.Spec.RenewTime = &metav1.MicroTime{Time: lease.Spec.RenewTime.Add(by)}
	return lease
}

// asKubelet is an administrator's configuration with a kubelet's user agent and encoding.
func asKubelet() *rest.Config {
	config := protobuf(server.ClientConfig("admin", "system:masters"))
	config.UserAgent = "kubelet/v1.36.3 (linux/amd64)"
	return config
}

// A renewal is answered here, and does what upstream's handler does, which answers JSON.
func TestARenewalIsAnyUpdate(t *testing.T) {
	config := asKubelet()
	usual := rest.CopyConfig(config)
	usual.ContentType, usual.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	var got [2]*coordinationv1.Lease
	for i, c := range []*rest.Config{config, usual} {
		leases := clientOf(t, c).CoordinationV1().Leases(corev1.NamespaceNodeLease)
		lease := nodeLease(t, config, []string{"short", "usual"}[i])
		old := lease.ManagedFields[0].Time.Time
		watching, err := leases.Watch(t.Context(), metav1.ListOptions{
			FieldSelector: "metadata.name=" + lease.Name, ResourceVersion: lease.ResourceVersion,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer watching.Stop()
		for range 2 { // the second is of what the first has answered
			if got[i], err = leases.Update(t.Context(), later(lease, time.Second), metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if e := <-watching.ResultChan(); e.Type != watch.Modified || !reflect.DeepEqual(e.Object, got[i]) {
				t.Errorf("the watch has %s %v, the answer is %v", e.Type, e.Object, got[i])
			}
			if got[i].Spec.RenewTime.Equal(lease.Spec.RenewTime) || got[i].ResourceVersion == lease.ResourceVersion {
				t.Errorf("not renewed: %v", got[i])
			}
			if at := got[i].ManagedFields[0].Time.Time; at.Before(old) || time.Since(at) > patience {
				t.Errorf("the time of the manager is %v", at)
			}
			lease = got[i]
		}
		if _, err := leases.Update(t.Context(), later(got[i], time.Second), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := leases.Update(t.Context(), later(got[i], 2*time.Second), metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("a renewal of an old version: %v", err)
		}
	}
	for _, l := range got { // what differs
		l.Name, l.UID, l.ResourceVersion, l.CreationTimestamp, l.ManagedFields[0].Time = "", "", "", metav1.Time{}, nil
		l.Spec.HolderIdentity, l.Spec.RenewTime = nil, nil
	}
	if !reflect.DeepEqual(got[0], got[1]) {
		t.Errorf("renewed here: %v\nby upstream's handler: %v", got[0], got[1])
	}
}

// Admission has its say.
func TestANodeRenewsItsOwnLease(t *testing.T) {
	lease := nodeLease(t, asKubelet(), "renewed")
	for name, allowed := range map[string]bool{"renewed": true, "another": false} {
		config := protobuf(server.ClientConfig("system:node:"+name, "system:nodes"))
		config.UserAgent = asKubelet().UserAgent
		_, err := clientOf(t, config).CoordinationV1().Leases(corev1.NamespaceNodeLease).
			Update(t.Context(), later(lease, time.Second), metav1.UpdateOptions{})
		if allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("node %s: %v", name, err)
		}
	}
}

// What is more than a renewal is upstream's, with its whole body.
func TestWhatIsNoRenewal(t *testing.T) {
	lease := nodeLease(t, asKubelet(), "no-renewal")
	second := nodeLease(t, asKubelet(), "two-managers")
	other := asKubelet()
	other.UserAgent = "another/v1"
	second, err := clientOf(t, other).CoordinationV1().Leases(corev1.NamespaceNodeLease).
		Patch(t.Context(), second.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	type attempt struct {
		lease *coordinationv1.Lease
		r     *http.Request
		info  *request.RequestInfo
		body  []byte
		// version is that of the body.
		version schema.GroupVersion
	}
	for name, test := range map[string]struct {
		change func(a *attempt)
		here   bool
	}{
		"a renewal":                      {func(*attempt) {}, true},
		"with a limit":                   {func(a *attempt) { a.r.URL.RawQuery = "timeout=10s" }, true},
		"without the managed fields":     {func(a *attempt) { a.lease.ManagedFields = nil }, true},
		"a dry run":                      {func(a *attempt) { a.r.URL.RawQuery = "dryRun=All" }, false},
		"as a table":                     {func(a *attempt) { a.r.Header.Set("Accept", "application/json;as=Table") }, false},
		"as a table, with a space":       {func(a *attempt) { a.r.Header.Set("Accept", "application/json; as=Table;g=meta.k8s.io;v=v1") }, false},
		"in a format that there is not":  {func(a *attempt) { a.r.Header.Set("Accept", "text/html") }, false},
		"of another version":             {func(a *attempt) { a.version = coordinationv1beta1.SchemeGroupVersion }, false},
		"as JSON":                        {func(a *attempt) { a.r.Header.Set("Content-Type", runtime.ContentTypeJSON) }, false},
		"of another namespace":           {func(a *attempt) { a.info.Namespace = "default" }, false},
		"of another name than the URL's": {func(a *attempt) { a.info.Name = "x" }, false},
		"a patch":                        {func(a *attempt) { a.info.Verb = "patch" }, false},
		"by another manager":             {func(a *attempt) { a.r.Header.Set("User-Agent", "kubectl/v1") }, false},
		"of one with two managers":       {func(a *attempt) { a.lease, a.info.Name = later(second, time.Second), second.Name }, false},
		"that resets the managers":       {func(a *attempt) { a.lease.ManagedFields = []metav1.ManagedFieldsEntry{{}} }, false},
		"without a version":              {func(a *attempt) { a.lease.ResourceVersion = "" }, false},
		"of an old version":              {func(a *attempt) { a.lease.ResourceVersion = "1" }, false},
		"of another UID":                 {func(a *attempt) { a.lease.UID = "x" }, false},
		"of one that does not exist":     {func(a *attempt) { a.lease.Name, a.info.Name = "missing", "missing" }, false},
		"with another holder":            {func(a *attempt) { a.lease.Spec.HolderIdentity = ptr.To("x") }, false},
		"with a label":                   {func(a *attempt) { a.lease.Labels = map[string]string{"a": "b"} }, false},
		"with the same time":             {func(a *attempt) { a.lease = later(lease, 0) }, false},
		"without a time":                 {func(a *attempt) { a.lease.Spec.RenewTime = nil }, false},
		"too long":                       {func(a *attempt) { a.body = make([]byte, 1<<20) }, false},
		"cut off":                        {func(a *attempt) { a.body = []byte("k8s\x00\x0a\x7f") }, false},
		"empty":                          {func(a *attempt) { a.body = []byte{} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			current, err := clientOf(t, asKubelet()).CoordinationV1().Leases(corev1.NamespaceNodeLease).
				Get(t.Context(), lease.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			lease = current
			r := httptest.NewRequest(http.MethodPut, "/", nil)
			r.Header.Set("Content-Type", runtime.ContentTypeProtobuf)
			r.Header.Set("Accept", runtime.ContentTypeProtobuf)
			r.Header.Set("User-Agent", asKubelet().UserAgent)
			a := &attempt{lease: later(lease, time.Second), r: r, info: &request.RequestInfo{
				IsResourceRequest: true, Verb: "update", APIGroup: coordinationv1.GroupName, APIVersion: "v1", Resource: "leases",
				Namespace: corev1.NamespaceNodeLease, Name: lease.Name,
			}, version: coordinationv1.SchemeGroupVersion}
			test.change(a)
			if a.body == nil {
				info, _ := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
				encoder := legacyscheme.Codecs.EncoderForVersion(info.Serializer, a.version)
				lease, err := legacyscheme.Scheme.ConvertToVersion(a.lease, coordination.SchemeGroupVersion)
				if err != nil {
					t.Fatal(err)
				}
				if a.body, err = runtime.Encode(encoder, lease); err != nil {
					t.Fatal(err)
				}
			}
			r.Body = io.NopCloser(bytes.NewReader(a.body))
			who := &user.DefaultInfo{Name: "admin", Groups: []string{"system:masters"}}
			ctx := request.WithUser(request.WithRequestInfo(t.Context(), a.info), who)
			passed := false
			answer := httptest.NewRecorder()
			(&renewals{leases: &built.leases, next: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				passed = true
				if got, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(got, a.body) {
					t.Errorf("of %d bytes upstream's handler gets %d: %v", len(a.body), len(got), err)
				}
			})}).ServeHTTP(answer, r.WithContext(ctx))
			if passed == test.here || test.here && answer.Code != http.StatusOK {
				t.Errorf("upstream's handler asked: %v; status %d", passed, answer.Code)
			}
		})
	}
}

// twice is admission that names an owner twice.
type twice struct{ admission.Interface }

func (twice) Handles(admission.Operation) bool { return true }

func (twice) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u"}
	a.GetObject().(*coordination.Lease).OwnerReferences = []metav1.OwnerReference{owner, owner}
	return nil
}

// Upstream's handler drops the second.
func TestOwnersFromAdmissionAreUpstreams(t *testing.T) {
	of := leases{admit: twice{}}
	lease := &coordination.Lease{}
	a := admission.NewAttributesRecord(lease, nil, leaseKind, "", "", leaseResource, "", admission.Update, nil, false, nil)
	if err := (&renewals{leases: &of}).mutate(t.Context(), lease, a); !errors.Is(err, errNotRenewal) {
		t.Errorf("an owner that admission names twice is written: %v", err)
	}
}

// hungUpdater is a storage that does not answer in time.
type hungUpdater struct {
	registry.Updater
	until <-chan struct{}
}

func (h hungUpdater) Update(context.Context, string, registry.UpdatedObjectInfo, registry.ValidateObjectFunc,
	registry.ValidateObjectUpdateFunc, bool, *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	select {
	case <-h.until:
	case <-time.After(patience):
	}
	return nil, false, context.DeadlineExceeded
}

// bodySizes is how many updates of leases the metric of bodies' sizes has.
func bodySizes(t *testing.T) (n uint64) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "apiserver_request_body_size_bytes" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["resource"] == "leases" && labels["verb"] == "update" {
				n += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return n
}

// Regression: a renewal that took too long was answered with 500, and only when the storage had
// given up.
func TestARenewalThatTakesLong(t *testing.T) {
	lease := nodeLease(t, asKubelet(), "slow")
	info, _ := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	encoder := legacyscheme.Codecs.EncoderForVersion(info.Serializer, coordinationv1.SchemeGroupVersion)
	body, err := runtime.Encode(encoder, later(lease, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	defer close(answered)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	ctx = request.WithUser(request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, Verb: "update", APIGroup: coordinationv1.GroupName, APIVersion: "v1", Resource: "leases",
		Namespace: corev1.NamespaceNodeLease, Name: lease.Name,
	}), &user.DefaultInfo{Name: "admin", Groups: []string{"system:masters"}})
	r := httptest.NewRequest(http.MethodPut, "/", bytes.NewReader(body)).WithContext(ctx)
	r.Header.Set("Content-Type", runtime.ContentTypeProtobuf)
	r.Header.Set("Accept", runtime.ContentTypeJSON)
	hung, sizes := built.leases, bodySizes(t)
	hung.storage = hungUpdater{until: answered}
	answer := httptest.NewRecorder()
	(&renewals{leases: &hung}).ServeHTTP(answer, r)
	if answer.Code != http.StatusGatewayTimeout {
		t.Errorf("status %d: %s", answer.Code, answer.Body)
	}
	if bodySizes(t) <= sizes {
		t.Error("the metric of bodies' sizes does not have the renewal")
	}
}
