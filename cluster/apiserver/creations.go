package apiserver

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coracle-project/coracle/cluster/apiserver/fieldsets"
)

// creations answers the requests that create pods and events and that bind pods, which are most of
// what a busy cluster writes. Upstream's handler does so here, too, but for one thing: it finds out
// for each object which fields it has, for the managed fields, by walking through its type several
// times. Most objects have the same fields as one before. So they are found once for each shape of
// objects.
//
// docs/decisions/creations.md has the reasons.
type creations struct {
	next http.Handler
	*creators
}

// creators create the objects. They are set after the handlers are made, and before they serve.
type creators struct {
	of map[target]*creator
}

// target is what objects are sent to.
type target struct {
	schema.GroupVersionResource
	subresource string
}

// created are the targets that creations answers for.
var created = []target{
	{corev1.SchemeGroupVersion.WithResource("pods"), ""},
	{corev1.SchemeGroupVersion.WithResource("pods"), "binding"},
	{corev1.SchemeGroupVersion.WithResource("events"), ""},
	{eventsv1.SchemeGroupVersion.WithResource("events"), ""},
}

// creator creates the objects of one target.
type creator struct {
	storage rest.Storage // a [rest.Creater], or a [rest.NamedCreater]
	scope   handlers.RequestScope
	admit   admission.Interface
	scheme  *runtime.Scheme
	fields  *fieldsets.Sets
}

// set takes the storages out of an API group.
func (c *creators) set(group *genericapiserver.APIGroupInfo, config *genericapiserver.Config) error {
	for _, to := range created {
		key := strings.TrimSuffix(to.Resource+"/"+to.subresource, "/")
		storage, served := group.VersionedResourcesStorageMap[to.Version][key]
		if !served || to.Group != group.PrioritizedVersions[0].Group {
			continue
		}
		made, err := newCreator(to, storage, group, config)
		if err != nil {
			return fmt.Errorf("%s %s: %w", to.GroupVersion(), key, err)
		}
		if c.of == nil {
			c.of = map[target]*creator{}
		}
		c.of[to] = made
	}
	return nil
}

// newCreator makes the scope that upstream's installer makes for a target.
func newCreator(to target, storage rest.Storage, group *genericapiserver.APIGroupInfo, config *genericapiserver.Config) (*creator, error) {
	kind, err := endpoints.GetResourceKind(to.GroupVersion(), storage, group.Scheme)
	if err != nil {
		return nil, err
	}
	table, _ := storage.(rest.TableConvertor)
	accepts, _ := storage.(rest.GroupVersionAcceptor)
	c := &creator{storage: storage, admit: config.AdmissionControl, scheme: group.Scheme}
	c.scope = handlers.RequestScope{
		Namer:          handlers.ContextBasedNaming{Namer: runtime.Namer(meta.NewAccessor())},
		Serializer:     group.NegotiatedSerializer,
		ParameterCodec: group.ParameterCodec,
		Creater:        withoutMetadata{group.Scheme}, Convertor: group.Scheme, Defaulter: group.Scheme, Typer: group.Scheme,
		UnsafeConvertor: runtime.UnsafeObjectConvertor(group.Scheme),
		Authorizer:      config.Authorization.Authorizer, EquivalentResourceMapper: config.EquivalentResourceRegistry,
		TableConvertor: table, AcceptsGroupVersionDelegate: accepts,
		Resource: to.GroupVersionResource, Subresource: to.subresource, Kind: kind,
		HubGroupVersion:     schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal},
		MetaGroupVersion:    metav1.SchemeGroupVersion,
		MaxRequestBodyBytes: config.MaxRequestBodyBytes,
	}
	if group.MetaGroupVersion != nil {
		c.scope.MetaGroupVersion = *group.MetaGroupVersion
	}
	var reset map[fieldpath.APIVersion]fieldpath.Filter
	if strategy, ok := storage.(rest.ResetFieldsStrategy); ok {
		reset = fieldpath.NewExcludeFilterSetMap(strategy.GetResetFields())
	} else if strategy, ok := storage.(rest.ResetFieldsFilterStrategy); ok {
		reset = strategy.GetResetFieldsFilter()
	}
	if c.fields, err = fieldsets.New(kind, to.subresource, storage.New(), group.Scheme, config.OpenAPIV3Config, reset); err != nil {
		return nil, err
	}
	c.scope.FieldManager = c.fields.Manager
	return c, nil
}

// withoutMetadata keeps upstream's handler from setting managed fields: it does not do so if the
// live object, which it makes for that only, has no metadata. Admission gets the real creater.
type withoutMetadata struct{ runtime.ObjectCreater }

// New implements [runtime.ObjectCreater].
func (withoutMetadata) New(schema.GroupVersionKind) (runtime.Object, error) {
	return &metav1.Status{}, nil
}

// ServeHTTP implements [http.Handler].
func (n *creations) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := n.creatorOf(r)
	if c == nil {
		n.next.ServeHTTP(w, r)
		return
	}
	it := &creation{Interface: c.admit, creator: c, agent: r.UserAgent()}
	var handler http.HandlerFunc
	switch storage := c.storage.(type) {
	case rest.NamedCreater:
		handler = handlers.CreateNamedResource(namedCreater{storage, it}, &c.scope, it)
	case rest.Creater:
		handler = handlers.CreateResource(creater{storage, it}, &c.scope, it)
	}
	id := c.scope.Resource
	metrics.InstrumentHandlerFunc(http.MethodPost, id.Group, id.Version, id.Resource, c.scope.Subresource, "resource",
		metrics.APIServerComponent, false, "", handler)(w, r)
}

// creatorOf returns nil for requests that are left to upstream's routes, among others those that
// these refuse for their encodings.
func (n *creations) creatorOf(r *http.Request) *creator {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || info.Verb != "create" || !info.IsResourceRequest || info.Namespace == "" || (info.Name == "") != (info.Subresource == "") {
		return nil
	}
	if len(info.Parts) != 1 && info.Subresource == "" || len(info.Parts) != 3 && info.Subresource != "" { // deeper paths have no route
		return nil
	}
	id := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	c := n.of[target{id, info.Subresource}]
	if c == nil {
		return nil
	}
	switch r.Header.Get("Content-Type") {
	case runtime.ContentTypeJSON, runtime.ContentTypeProtobuf:
	default:
		return nil
	}
	if strings.Contains(strings.ReplaceAll(r.Header.Get("Accept"), "*/*", ""), "*") { // upstream's router knows */* only
		return nil
	}
	if _, _, err := negotiation.NegotiateOutputMediaType(r, c.scope.Serializer, &c.scope); err != nil {
		return nil
	}
	return c
}

// creation is admission for one request. First it sets the managed fields, which upstream's handler
// sets right before admission.
type creation struct {
	admission.Interface
	*creator
	agent string // of the client
	shape fieldsets.Shape
	// taken are the managed fields if admission has left them: upstream's handler would decode them,
	// to see whether they are valid.
	taken []metav1.ManagedFieldsEntry
}

// Handles implements [admission.Interface].
func (*creation) Handles(admission.Operation) bool { return true }

// Admit implements [admission.MutationInterface].
func (c *creation) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	options, ok := a.GetOperationOptions().(*metav1.CreateOptions)
	if !ok {
		return fmt.Errorf("options of a creation are %T", a.GetOperationOptions())
	}
	object, ok := a.GetObject().(metav1.Object)
	if !ok {
		return fmt.Errorf("%T has no metadata", a.GetObject())
	}
	var err error
	if c.shape, err = c.fields.Set(object, cmp.Or(options.FieldManager, managerOf(c.agent)), time.Now()); err != nil {
		return err
	}
	set := slices.Clone(object.GetManagedFields())
	if mutating, ok := c.Interface.(admission.MutationInterface); ok && c.Interface.Handles(a.GetOperation()) {
		if err := mutating.Admit(ctx, a, withCreater{o, c.scheme}); err != nil {
			return err
		}
	}
	if changed := object.GetManagedFields(); !slices.Equal(changed, set) {
		err := managedfields.ValidateManagedFields(changed)
		if err == nil {
			return nil
		}
		object.SetManagedFields(set)
		warning.AddWarning(ctx, "", fmt.Sprintf(fieldmanager.InvalidManagedFieldsAfterMutatingAdmissionWarningFormat, err))
	}
	c.taken = set
	object.SetManagedFields(nil)
	return nil
}

// Validate implements [admission.ValidationInterface].
func (c *creation) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if validating, ok := c.Interface.(admission.ValidationInterface); ok && c.Interface.Handles(a.GetOperation()) {
		return validating.Validate(ctx, a, withCreater{o, c.scheme})
	}
	return nil
}

// withCreater is a scope for admission, which makes objects of their real types.
type withCreater struct {
	admission.ObjectInterfaces
	creater runtime.ObjectCreater
}

// GetObjectCreater implements [admission.ObjectInterfaces].
func (w withCreater) GetObjectCreater() runtime.ObjectCreater { return w.creater }

// giveBack gives an object the fields that Admit has taken, once: the second time, upstream's
// handler has dropped them, since the object is too large with them.
func (c *creation) giveBack(object runtime.Object) {
	if of, ok := object.(metav1.Object); ok && c.taken != nil {
		of.SetManagedFields(c.taken)
		c.taken = nil
	}
}

// keep remembers the fields of an object whose creation ended with err.
func (c *creation) keep(options *metav1.CreateOptions, err error) {
	if err == nil && len(options.DryRun) == 0 {
		c.fields.Keep(c.shape)
	}
}

// creater is storage for one creation.
type creater struct {
	rest.Creater
	it *creation
}

// Create implements [rest.Creater].
func (c creater) Create(ctx context.Context, object runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	c.it.giveBack(object)
	made, err := c.Creater.Create(ctx, object, validate, options)
	c.it.keep(options, err)
	return made, err
}

// namedCreater is storage for one creation by name.
type namedCreater struct {
	rest.NamedCreater
	it *creation
}

// Create implements [rest.NamedCreater].
func (c namedCreater) Create(ctx context.Context, name string, object runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	c.it.giveBack(object)
	made, err := c.NamedCreater.Create(ctx, name, object, validate, options)
	c.it.keep(options, err)
	return made, err
}

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate implements
// [rest.SubresourceObjectMetaPreserver].
func (c namedCreater) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool {
	p, ok := c.NamedCreater.(rest.SubresourceObjectMetaPreserver)
	return ok && p.PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate()
}

// managerOf returns the name of the manager whose client has this user agent, as upstream's handler
// makes it: what can be printed of the part before the first slash, up to a limit.
func managerOf(agent string) string {
	agent, _, _ = strings.Cut(agent, "/")
	var name strings.Builder
	for _, r := range agent {
		if !unicode.IsPrint(r) {
			continue
		}
		if name.Len()+utf8.RuneLen(r) > validation.FieldManagerMaxLength {
			break
		}
		name.WriteRune(r)
	}
	return name.String()
}
