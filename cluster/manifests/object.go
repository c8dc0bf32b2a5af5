package manifests

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

const (
	// fieldManager owns the fields that manifests set.
	fieldManager = "coracle-manifests"
	// fileAnnotation names the file of an object.
	fileAnnotation = "coracle.dev/manifest"
)

// objectKind is a kind in any version.
type objectKind = schema.GroupKind

// definitionKind is the kind of objects that define kinds.
var definitionKind = objectKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}

// objectKey is one object of the cluster.
type objectKey struct {
	kind            objectKind
	namespace, name string
}

func (k objectKey) String() string {
	if k.namespace == "" {
		return k.kind.Kind + " " + k.name
	}
	return fmt.Sprintf("%s %s/%s", k.kind.Kind, k.namespace, k.name)
}

// object is one object of a manifest.
type object struct {
	key      objectKey
	resource schema.GroupVersionResource
	file     string
	place    int // in its file
	rank     int // objects of a lower rank are applied first
	content  *unstructured.Unstructured
	digest   string
}

func (o *object) kind() objectKind { return o.key.kind }

// newObject finds the resource of an object, and gives it label and annotation of the set.
func (s *Set) newObject(file string, place int, content *unstructured.Unstructured) (*object, error) {
	kind := content.GroupVersionKind()
	mapping, err := s.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		s.Mapper.Reset() // it may have been defined since
		mapping, err = s.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", content.GetKind(), content.GetName(), err)
	}
	content = content.DeepCopy()
	switch namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace; {
	case namespaced && content.GetNamespace() == "":
		content.SetNamespace(metav1.NamespaceDefault)
	case !namespaced && content.GetNamespace() != "":
		return nil, fmt.Errorf("%s %s: it has no namespace, but metadata.namespace is %q", content.GetKind(), content.GetName(), content.GetNamespace())
	}
	for _, field := range []string{"labels", "annotations"} {
		// Its accessor has none at all if one is wrong.
		if _, _, err := unstructured.NestedStringMap(content.Object, "metadata", field); err != nil {
			return nil, fmt.Errorf("%s %s: %w", content.GetKind(), content.GetName(), err)
		}
	}
	set(content.GetLabels, content.SetLabels, partOfLabel, s.id)
	set(content.GetAnnotations, content.SetAnnotations, fileAnnotation, file)
	unstructured.RemoveNestedField(content.Object, "status")
	for _, field := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"} {
		unstructured.RemoveNestedField(content.Object, "metadata", field)
	}
	raw, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)
	o := &object{
		key:      objectKey{kind.GroupKind(), content.GetNamespace(), content.GetName()},
		resource: mapping.Resource, file: file, place: place, rank: 2, content: content, digest: hex.EncodeToString(sum[:]),
	}
	switch kind.GroupKind() {
	case definitionKind:
		o.rank = 0
	case schema.GroupKind{Kind: "Namespace"}:
		o.rank = 1
	}
	return o, nil
}

func set(get func() map[string]string, put func(map[string]string), key, value string) {
	all := get()
	if all == nil {
		all = map[string]string{}
	}
	all[key] = value
	put(all)
}

// applyOne applies an object, unless the cluster has it as the file says.
func (s *Set) applyOne(ctx context.Context, o *object) error {
	s.mu.Lock()
	was, ok := s.applied[o.key]
	s.applying, s.seen, s.deleted = o.key, "", false
	s.mu.Unlock()
	if ok && was.digest == o.digest {
		return nil
	}
	if err := s.checkOwner(ctx, o); err != nil {
		return err
	}
	raw, err := json.Marshal(o.content)
	if err != nil {
		return err
	}
	force := true // the file wins over other managers of a field
	now, err := s.Dynamic.Resource(o.resource).Namespace(o.key.namespace).Patch(ctx, o.key.name, types.ApplyPatchType, raw,
		metav1.PatchOptions{FieldManager: fieldManager, Force: &force, FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		return fmt.Errorf("%s: %w", o.key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.overtakenLocked(now.GetResourceVersion()) {
		delete(s.applied, o.key)
		s.again()
		return nil
	}
	s.applied[o.key] = versionOf(o, now)
	return nil
}

// overtakenLocked tells whether something else has changed the object that is being applied before
// its new version is known here.
func (s *Set) overtakenLocked(applied string) bool {
	if s.deleted || s.seen == "" {
		return s.deleted // perhaps before it was applied: then it is applied again
	}
	order, err := resourceversion.CompareResourceVersion(s.seen, applied)
	return err != nil || order > 0
}

// checkOwner refuses an object that belongs to another apply set. An object of a node that is not
// in the cluster any more is taken over.
func (s *Set) checkOwner(ctx context.Context, o *object) error {
	now, err := s.Metadata.Resource(o.resource).Namespace(o.key.namespace).Get(ctx, o.key.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.key, err)
	}
	owner := now.GetLabels()[partOfLabel]
	if owner == "" || owner == s.id {
		return nil
	}
	file, ours := now.GetAnnotations()[fileAnnotation]
	if !ours {
		return fmt.Errorf("%s: it belongs to the apply set %s", o.key, owner)
	}
	nodes, err := s.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("%s: %w", o.key, err)
	}
	for k := range nodes.Items {
		if node := nodes.Items[k].Name; idOf(parentOf(node)) == owner {
			return fmt.Errorf("%s: node %s has it in its %s", o.key, node, file)
		}
	}
	return nil
}
