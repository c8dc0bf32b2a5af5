package manifests

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Labels and annotations of kubectl's apply sets (KEP-3659).
const (
	idLabel           = "applyset.kubernetes.io/id"
	partOfLabel       = "applyset.kubernetes.io/part-of"
	toolingAnnotation = "applyset.kubernetes.io/tooling"
	kindsAnnotation   = "applyset.kubernetes.io/contains-group-kinds"

	tooling = "coracle/v1"
)

// parentOf is the ConfigMap in kube-system that is the parent of a node's set. Each control-plane
// node has a directory, and a set, of its own.
func parentOf(node string) string { return "coracle-manifests-" + node }

// idOf is the id of a set, as the KEP computes it from the parent.
func idOf(parent string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{parent, metav1.NamespaceSystem, "ConfigMap", ""}, ".")))
	return "applyset-" + base64.RawURLEncoding.EncodeToString(sum[:]) + "-v1"
}

// openParent reads the parent, and makes it if it does not exist and needed says so.
func (s *Set) openParent(ctx context.Context, needed bool) error {
	if s.parent != nil {
		return nil
	}
	maps := s.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	parent, err := maps.Get(ctx, s.parentName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if !needed {
			return nil
		}
		parent, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: s.parentName, Namespace: metav1.NamespaceSystem,
			Labels:      map[string]string{idLabel: s.id},
			Annotations: map[string]string{toolingAnnotation: tooling, kindsAnnotation: s.names},
		}}, metav1.CreateOptions{FieldManager: fieldManager})
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", s.parentName, err)
	}
	parent.Kind, parent.APIVersion = "ConfigMap", "v1" // events refer to it
	s.parent = parent
	if s.names == "" {
		s.names = parent.Annotations[kindsAnnotation]
	}
	return nil
}

// listed are the kinds that the parent lists.
func (s *Set) listed() map[objectKind]bool {
	all := map[objectKind]bool{}
	for text := range strings.SplitSeq(s.parent.Annotations[kindsAnnotation], ",") {
		if text != "" {
			all[schema.ParseGroupKind(text)] = true
		}
	}
	return all
}

// listKinds has the parent list kinds in addition to those that it lists or, with only, instead of
// them.
func (s *Set) listKinds(ctx context.Context, kinds map[objectKind]bool, only bool) error {
	before := s.listed()
	after := maps.Clone(kinds)
	if !only {
		maps.Copy(after, before)
	}
	if maps.Equal(before, after) && s.parent.Labels[idLabel] == s.id {
		return nil
	}
	var names []string
	for kind := range after {
		names = append(names, kind.String())
	}
	slices.Sort(names)
	list := strings.Join(names, ",")
	next := s.parent.DeepCopy()
	set(next.GetLabels, next.SetLabels, idLabel, s.id)
	set(next.GetAnnotations, next.SetAnnotations, toolingAnnotation, tooling)
	set(next.GetAnnotations, next.SetAnnotations, kindsAnnotation, list)
	next, err := s.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Update(ctx, next, metav1.UpdateOptions{FieldManager: fieldManager})
	if err != nil {
		s.parent = nil // it has changed, or is gone: the next try reads it again
		return fmt.Errorf("ConfigMap %s: %w", s.parentName, err)
	}
	next.Kind, next.APIVersion = "ConfigMap", "v1"
	s.parent, s.names = next, list
	return nil
}

var serviceResource = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// resourceOf returns the resource of a kind that the parent lists, false if nothing serves it: its
// definition is gone then, and its objects with it. The mapper does not decide that. It remembers
// for a while what it has not found, and knows of other API servers what they last said.
func (s *Set) resourceOf(ctx context.Context, kind objectKind) (schema.GroupVersionResource, bool, error) {
	mapping, err := s.Mapper.RESTMapping(kind)
	if meta.IsNoMatchError(err) {
		s.Mapper.Reset()
		mapping, err = s.Mapper.RESTMapping(kind)
	}
	if meta.IsNoMatchError(err) {
		return s.elsewhere(ctx, kind)
	}
	if err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	return mapping.Resource, true, nil
}

// elsewhere asks the API servers for a kind that the cluster passes requests for its group on to.
// It is an error if one does not answer, since nothing is known of the kind then. So it is if one
// answers that it is not there: the API server may not know yet whom to ask.
func (s *Set) elsewhere(ctx context.Context, kind objectKind) (found schema.GroupVersionResource, ok bool, err error) {
	all, err := s.Dynamic.Resource(serviceResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return found, false, fmt.Errorf("%s: %w", kind, err)
	}
	for k := range all.Items {
		o := &all.Items[k]
		group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
		version, _, _ := unstructured.NestedString(o.Object, "spec", "version")
		if _, elsewhere, _ := unstructured.NestedMap(o.Object, "spec", "service"); group != kind.Group || !elsewhere {
			continue
		}
		at := schema.GroupVersion{Group: group, Version: version}
		list, err := s.Kube.Discovery().ServerResourcesForGroupVersion(at.String())
		if err != nil {
			return found, false, fmt.Errorf("%s: its API server does not answer (APIService %s): objects without a manifest are deleted when it "+
				"does, or forgotten when the APIService is deleted: %w", kind, o.GetName(), err)
		}
		for _, r := range list.APIResources {
			if r.Kind == kind.Kind && !strings.Contains(r.Name, "/") { // no subresource
				found, ok = at.WithResource(r.Name), true
			}
		}
	}
	return found, ok, nil
}

// prune deletes the objects of the set that are none of keys.
func (s *Set) prune(ctx context.Context, keys map[objectKey]bool) error {
	var errs []error
	for kind := range s.listed() {
		of, known, err := s.resourceOf(ctx, kind)
		if err != nil {
			errs = append(errs, err)
		}
		if !known {
			continue
		}
		resource := s.Metadata.Resource(of)
		all, err := resource.List(ctx, metav1.ListOptions{LabelSelector: partOfLabel + "=" + s.id})
		if err != nil {
			s.Mapper.Reset() // if its definition has gone since the mapper looked, the next try finds that
			errs = append(errs, fmt.Errorf("%s: %w", kind, err))
			continue
		}
		for k := range all.Items {
			o := &all.Items[k]
			key := objectKey{kind, o.Namespace, o.Name}
			if keys[key] {
				continue
			}
			background := metav1.DeletePropagationBackground
			err := resource.Namespace(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{
				PropagationPolicy: &background, Preconditions: metav1.NewUIDPreconditions(string(o.UID)),
			})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				errs = append(errs, fmt.Errorf("delete %s: %w", key, err))
				continue
			}
			s.mu.Lock()
			delete(s.applied, key)
			s.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}
