package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/finisher"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/coordination"
)

// renewals answers the requests by which nodes renew their leases: each node sends one every ten
// seconds, so they are most of what a large cluster writes. What such a request is, and what it
// does, is exactly what upstream's handler makes of it. That finds out which fields have changed,
// for the managed fields, by walking through the types of both objects three times. Here the field
// is known, so only the time of the manager's entry changes.
//
// Authentication, authorization, fairness, audit, admission, the check of the version and watches
// are as for any other update. What is no plain renewal is left to upstream's handler, among others
// one whose field is owned by a second manager. docs/decisions/renewals.md has the reasons.
type renewals struct {
	next http.Handler
	*leases
}

// leases are what renewals writes to; it is set after the handlers are made, and before they serve.
type leases struct {
	storage    rest.Updater // nil if leases are not served
	serializer runtime.NegotiatedSerializer
	decoder    runtime.Decoder
	admit      admission.Interface
	objects    admission.ObjectInterfaces
}

const (
	// renewalLimit is more than the lease of a node has bytes.
	renewalLimit = 16 << 10
	// renewalTime is upstream's limit for a write.
	renewalTime = 34 * time.Second
)

var (
	leaseResource = coordinationv1.SchemeGroupVersion.WithResource("leases")
	leaseKind     = coordinationv1.SchemeGroupVersion.WithKind("Lease")
	// errNotRenewal has upstream's handler answer.
	errNotRenewal = errors.New("more than the time of a lease changes")
)

// set takes the storage of leases out of their API group.
func (l *leases) set(group *genericapiserver.APIGroupInfo, c *genericapiserver.Config) {
	storage, ok := group.VersionedResourcesStorageMap[leaseResource.Version][leaseResource.Resource].(rest.Updater)
	info, known := runtime.SerializerInfoForMediaType(group.NegotiatedSerializer.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok || !known {
		return
	}
	l.serializer = group.NegotiatedSerializer
	l.decoder = l.serializer.DecoderToVersion(info.Serializer, coordination.SchemeGroupVersion)
	l.admit = admission.WithAudit(c.AdmissionControl)
	l.objects = equivalents{admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme), c.EquivalentResourceRegistry}
	l.storage = storage
}

// equivalents are what admission needs to know of kinds, as in upstream's handlers.
type equivalents struct {
	admission.ObjectInterfaces
	mapper runtime.EquivalentResourceMapper
}

// GetEquivalentResourceMapper implements [admission.ObjectInterfaces].
func (e equivalents) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper { return e.mapper }

// ServeHTTP implements [http.Handler].
func (n *renewals) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if n.storage == nil || !n.mayRenew(r) {
		n.next.ServeHTTP(w, r)
		return
	}
	left := r.Body
	body, err := io.ReadAll(io.LimitReader(left, renewalLimit))
	r.Body = again{io.MultiReader(bytes.NewReader(body), left), left}
	if err != nil || len(body) == renewalLimit {
		n.next.ServeHTTP(w, r)
		return
	}
	kind := leaseKind
	sent, of, err := n.decoder.Decode(body, &kind, &coordination.Lease{})
	if lease, ok := sent.(*coordination.Lease); err == nil && ok && *of == leaseKind { // another version is refused
		if renewed, err := n.renew(r, lease); !errors.Is(err, errNotRenewal) {
			requestmetrics.RecordRequestBodySize(r.Context(), leaseResource.GroupResource(), requestmetrics.Update, len(body))
			n.answer(w, r, renewed, err)
			return
		}
	}
	n.next.ServeHTTP(w, r)
}

// again is a body that was read, from its beginning.
type again struct {
	io.Reader
	io.Closer
}

// mayRenew says whether a request may be a renewal, without reading its body.
func (n *renewals) mayRenew(r *http.Request) bool {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || info.Resource != leaseResource.Resource || info.Verb != "update" || info.Namespace != corev1.NamespaceNodeLease ||
		info.APIGroup != leaseResource.Group || info.APIVersion != leaseResource.Version || info.Subresource != "" || info.Name == "" {
		return false
	}
	for option := range r.URL.Query() {
		if option != "timeout" { // which has been taken into account
			return false
		}
	}
	if r.Header.Get("Content-Type") != runtime.ContentTypeProtobuf {
		return false
	}
	// As a table, or in a format that there is not, for example.
	_, _, err := negotiation.NegotiateOutputMediaType(r, n.serializer, negotiation.DefaultEndpointRestrictions)
	return err == nil
}

// renew writes a renewal, and returns the lease as it is then.
func (n *renewals) renew(r *http.Request, sent *coordination.Lease) (runtime.Object, error) {
	info, _ := request.RequestInfoFrom(r.Context())
	who, known := request.UserFrom(r.Context())
	if sent.Name != info.Name || sent.Namespace != info.Namespace || sent.ResourceVersion == "" || sent.Spec.RenewTime == nil || !known {
		return nil, errNotRenewal
	}
	ctx, cancel := context.WithTimeout(request.WithNamespace(r.Context(), info.Namespace), renewalTime)
	defer cancel()
	options := &metav1.UpdateOptions{}
	options.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("UpdateOptions"))
	about := func(obj, old runtime.Object) admission.Attributes {
		return admission.NewAttributesRecord(obj, old, leaseKind, info.Namespace, info.Name, leaseResource, "", admission.Update, options,
			false, who)
	}
	audit.LogRequestObject(ctx, sent, leaseKind.GroupVersion(), leaseResource, "", n.serializer)
	manager, _, _ := strings.Cut(r.UserAgent(), "/")
	update := rest.DefaultUpdatedObjectInfo(nil, func(ctx context.Context, _, old runtime.Object) (runtime.Object, error) {
		lease, err := renewal(old.(*coordination.Lease), sent, manager, time.Now())
		if err != nil {
			return nil, err
		}
		return lease, n.mutate(ctx, lease, about(lease, old))
	})
	validate := rest.AdmissionToValidateObjectUpdateFunc(n.admit, about(nil, nil), n.objects)
	return finisher.FinishRequest(ctx, func() (runtime.Object, error) { // answers in time
		growStack() // that of another goroutine
		renewed, _, err := n.storage.Update(ctx, info.Name, update, noCreation, validate, false, options)
		return renewed, err
	})
}

// mutate lets admission change a lease.
func (n *renewals) mutate(ctx context.Context, lease *coordination.Lease, a admission.Attributes) error {
	mutating, ok := n.admit.(admission.MutationInterface)
	if !ok || !mutating.Handles(admission.Update) {
		return nil
	}
	fields, owners := lease.ManagedFields, lease.OwnerReferences
	if err := mutating.Admit(ctx, a, n.objects); err != nil {
		return err
	}
	if !equality.Semantic.DeepEqual(fields, lease.ManagedFields) || !equality.Semantic.DeepEqual(owners, lease.OwnerReferences) {
		return errNotRenewal // upstream's handler checks the fields, and drops owners that are there twice
	}
	return nil
}

// noCreation has upstream's handler make leases that do not exist.
func noCreation(context.Context, runtime.Object) error { return errNotRenewal }

// renewal returns old with the time that sent has, and errNotRenewal if it differs in more than
// that, or if who sends it is not its only manager.
func renewal(old, sent *coordination.Lease, manager string, now time.Time) (*coordination.Lease, error) {
	before, after := *old, *sent
	before.TypeMeta, after.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{}
	before.Spec.RenewTime, after.Spec.RenewTime = nil, nil
	if len(after.ManagedFields) == 0 { // the client does not know them, and leaves them
		after.ManagedFields = before.ManagedFields
	}
	if old.Spec.RenewTime == nil || old.Spec.RenewTime.Equal(sent.Spec.RenewTime) || len(old.ManagedFields) != 1 ||
		len(old.Finalizers) > 0 || old.DeletionTimestamp != nil || !equality.Semantic.DeepEqual(before, after) {
		return nil, errNotRenewal
	}
	m := old.ManagedFields[0]
	if m.Manager != manager || m.Operation != metav1.ManagedFieldsOperationUpdate || m.APIVersion != leaseKind.GroupVersion().String() ||
		m.Subresource != "" || m.FieldsV1 == nil || !strings.Contains(m.FieldsV1.GetRawString(), `"f:renewTime":{}`) {
		return nil, errNotRenewal
	}
	lease := old.DeepCopy()
	lease.Spec.RenewTime = sent.Spec.RenewTime
	lease.ManagedFields[0].Time = &metav1.Time{Time: now.UTC().Truncate(time.Second)}
	return lease, nil
}

// answer writes what upstream's handler would, and counts the request.
func (n *renewals) answer(w http.ResponseWriter, r *http.Request, lease runtime.Object, err error) {
	version := leaseKind.GroupVersion()
	metrics.InstrumentHandlerFunc(http.MethodPut, leaseResource.Group, leaseResource.Version, leaseResource.Resource, "", "resource",
		metrics.APIServerComponent, false, "", func(w http.ResponseWriter, r *http.Request) {
			if err != nil {
				responsewriters.ErrorNegotiated(err, n.serializer, version, w, r)
				return
			}
			responsewriters.WriteObjectNegotiated(n.serializer, negotiation.DefaultEndpointRestrictions, version, w, r, http.StatusOK,
				lease, false)
		})(w, r)
}
