package framework

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Term is a parsed term of inter-pod affinity: pods in some namespaces that a selector matches,
// and the node label whose values are the places that pods share.
type Term struct {
	TopologyKey string
	Selector    labels.Selector
	// Namespaces are the namespaces by name, sorted; NamespaceSelector finds further ones by
	// their labels.
	Namespaces        []string
	NamespaceSelector labels.Selector
}

// WeightedTerm is a term of preferred affinity.
type WeightedTerm struct {
	Term
	Weight int32
}

// Matches says whether the term is about pod, which is in a namespace with the given labels.
func (t *Term) Matches(pod *v1.Pod, namespace labels.Set) bool {
	if !slices.Contains(t.Namespaces, pod.Namespace) && !t.NamespaceSelector.Matches(namespace) {
		return false
	}
	return t.Selector.Matches(labels.Set(pod.Labels))
}

// Identity is equal for terms that match the same pods, once their namespaces are resolved.
func (t *Term) Identity() string {
	return strings.Join(t.Namespaces, ",") + "/" + identity(t.NamespaceSelector) + "/" + identity(t.Selector)
}

// identity is equal for equal selectors. String alone is empty for one that matches all and for one
// that matches none.
func identity(s labels.Selector) string {
	if _, selectable := s.Requirements(); !selectable {
		return "<none>"
	}
	return s.String()
}

// Resolve returns t with the namespaces that its selector finds, listed by list, put among its
// Namespaces.
func (t Term) Resolve(list func(labels.Selector) ([]*v1.Namespace, error)) (Term, error) {
	if t.NamespaceSelector.Empty() {
		return t, nil // matches all; there is no need to name them
	}
	if _, selectable := t.NamespaceSelector.Requirements(); !selectable {
		return t, nil // finds none
	}
	found, err := list(t.NamespaceSelector)
	if err != nil {
		return t, err
	}
	t.Namespaces = slices.Clone(t.Namespaces)
	for _, ns := range found {
		t.Namespaces = append(t.Namespaces, ns.Name)
	}
	slices.Sort(t.Namespaces)
	t.Namespaces = slices.Compact(t.Namespaces)
	t.NamespaceSelector = labels.Nothing()
	return t, nil
}

func newTerm(pod *v1.Pod, term *v1.PodAffinityTerm) (Term, error) {
	selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
	if err != nil {
		return Term{}, err
	}
	namespaces, err := metav1.LabelSelectorAsSelector(term.NamespaceSelector)
	if err != nil {
		return Term{}, err
	}
	t := Term{TopologyKey: term.TopologyKey, Selector: selector, NamespaceSelector: namespaces}
	if len(term.Namespaces) == 0 && term.NamespaceSelector == nil {
		t.Namespaces = []string{pod.Namespace}
		return t, nil
	}
	t.Namespaces = slices.Clone(term.Namespaces)
	slices.Sort(t.Namespaces)
	return t, nil
}

func (p *PodInfo) parseAffinity(pod *v1.Pod) {
	a := pod.Spec.Affinity
	if a == nil {
		return
	}
	var errs []error
	// As soon as one term of a list is wrong none of that list count.
	required := func(what string, terms []v1.PodAffinityTerm) []Term {
		var out []Term
		for i := range terms {
			t, err := newTerm(pod, &terms[i])
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", what, err))
				return nil
			}
			out = append(out, t)
		}
		return out
	}
	preferred := func(what string, terms []v1.WeightedPodAffinityTerm) []WeightedTerm {
		var out []WeightedTerm
		for i := range terms {
			t, err := newTerm(pod, &terms[i].PodAffinityTerm)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", what, err))
				return nil
			}
			out = append(out, WeightedTerm{t, terms[i].Weight})
		}
		return out
	}
	if pa := a.PodAffinity; pa != nil {
		p.RequiredAffinity = required("requiredAffinityTerms", pa.RequiredDuringSchedulingIgnoredDuringExecution)
		p.PreferredAffinity = preferred("preferredAffinityTerms", pa.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if pa := a.PodAntiAffinity; pa != nil {
		p.RequiredAntiAffinity = required("requiredAntiAffinityTerms", pa.RequiredDuringSchedulingIgnoredDuringExecution)
		p.PreferredAntiAffinity = preferred("preferredAntiAffinityTerms", pa.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	p.Err = errors.Join(errs...)
}
