// Package fieldsets sets the managed fields of objects that are created.
//
// Upstream's field manager finds out for each object which fields it has, by walking through its
// type several times (structured-merge-diff). The result depends on which fields are set, and on
// the values inside lists only, since those may be the keys of a list's items. Most pods and events
// are like others in that. So the field manager is asked once for each shape of objects, and its
// answer is kept.
package fieldsets

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	openapibuilder "k8s.io/kube-openapi/pkg/builder3"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	openapiutil "k8s.io/kube-openapi/pkg/util"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

const (
	// keepLimit is the size of what is kept for one resource, in bytes. A shape of ordinary pods takes
	// 1 to 5 kB. A cluster has one for each controller of pods, and one for each reason of events.
	keepLimit = 2 << 20
	// shapeLimit is the size of what is kept for one shape.
	shapeLimit = 16 << 10
	// unknownManager is upstream's name for a client without one.
	unknownManager = "unknown"
)

// Sets are the fields of objects of one resource. It may be used by several goroutines.
type Sets struct {
	Manager *managedfields.FieldManager // upstream's

	version, subresource string
	// blank makes what upstream's handler compares a new object with.
	blank func() (runtime.Object, error)
	plan  *plan
	keys  sync.Pool // of *[]byte

	mu sync.RWMutex
	// known has fields as FieldsV1, by the keys of objects.
	known map[string]string
	size  int // of known, in bytes
}

// A Shape is what was found for an object. Its zero value is nothing.
type Shape struct{ key, fields string }

// New returns the sets of objects of a kind, whose internal type in scheme is that of example, and
// which are sent to a resource, or to a subresource unless that is empty. Definitions must have the
// kind. Fields that reset has are not the client's, as the storage's strategy says.
func New(kind schema.GroupVersionKind, subresource string, example runtime.Object, scheme *runtime.Scheme,
	definitions *openapicommon.OpenAPIV3Config, reset map[fieldpath.APIVersion]fieldpath.Filter,
) (*Sets, error) {
	s := &Sets{version: kind.GroupVersion().String(), subresource: subresource, known: map[string]string{}}
	s.blank = func() (runtime.Object, error) { return scheme.New(kind) }
	versioned, err := s.blank()
	if err != nil {
		return nil, err
	}
	defined, err := openapibuilder.BuildOpenAPIDefinitionsForResources(definitions, openapiutil.GetCanonicalTypeName(versioned))
	if err != nil {
		return nil, err
	}
	converter, err := managedfields.NewTypeConverter(defined, false)
	if err != nil {
		return nil, err
	}
	hub := schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}
	s.Manager, err = managedfields.NewDefaultFieldManager(converter, runtime.UnsafeObjectConvertor(scheme), scheme, scheme, kind, hub,
		subresource, reset)
	if err != nil {
		return nil, err
	}
	s.plan, err = planFor(example)
	return s, err
}

// Set sets the managed fields of an object that manager creates, as the field manager would. What
// the field manager was asked about is returned for Keep: to be called once the object was created,
// since only those who may create objects should fill the memory.
func (s *Sets) Set(object metav1.Object, manager string, now time.Time) (Shape, error) {
	if len(object.GetManagedFields()) > 0 { // the client has sent some, which count
		return Shape{}, s.find(object, manager)
	}
	buffer, _ := s.keys.Get().(*[]byte)
	if buffer == nil {
		buffer = new([]byte)
	}
	key := s.plan.append((*buffer)[:0], object)
	if cap(key) <= 2*shapeLimit {
		*buffer = key
		defer s.keys.Put(buffer)
	}
	s.mu.RLock()
	fields, ok := s.known[string(key)]
	s.mu.RUnlock()
	if ok {
		object.SetManagedFields([]metav1.ManagedFieldsEntry{{
			Manager: cmp.Or(manager, unknownManager), Operation: metav1.ManagedFieldsOperationUpdate,
			APIVersion: s.version, Subresource: s.subresource,
			Time: &metav1.Time{Time: now.UTC()}, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		}})
		return Shape{}, nil
	}
	if err := s.find(object, manager); err != nil {
		return Shape{}, err
	}
	found := object.GetManagedFields()
	if len(found) != 1 {
		return Shape{}, nil
	}
	shape := Shape{string(key), found[0].FieldsV1.GetRawString()}
	if shape.size() > shapeLimit {
		return Shape{}, nil
	}
	return shape, nil
}

func (s Shape) size() int { return len(s.key) + len(s.fields) }

// Keep remembers a shape. If there is no room for it, others are forgotten, which ones is left to
// chance.
func (s *Sets) Keep(shape Shape) {
	if shape == (Shape{}) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.known[shape.key]; ok {
		return
	}
	for key, fields := range s.known {
		if s.size+shape.size() <= keepLimit {
			break
		}
		delete(s.known, key)
		s.size -= len(key) + len(fields)
	}
	s.known[shape.key] = shape.fields
	s.size += shape.size()
}

// Len returns how many shapes are known.
func (s *Sets) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.known)
}

// find has the field manager find the fields of an object.
func (s *Sets) find(object metav1.Object, manager string) error {
	whole, ok := object.(runtime.Object)
	if !ok {
		return fmt.Errorf("%T is not an API object", object)
	}
	blank, err := s.blank()
	if err != nil {
		return err
	}
	found, err := meta.Accessor(s.Manager.UpdateNoErrors(blank, whole, manager))
	if err != nil {
		return err
	}
	object.SetManagedFields(found.GetManagedFields())
	return nil
}
