package metricsapi

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/metrics/pkg/apis/metrics"
)

// selected says whether an object is among those that a list asks for.
func selected(o *metav1.ObjectMeta, options *internalversion.ListOptions) bool {
	if options == nil {
		return true
	}
	if options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set(o.Labels)) {
		return false
	}
	return options.FieldSelector == nil ||
		options.FieldSelector.Matches(fields.Set{"metadata.name": o.Name, "metadata.namespace": o.Namespace})
}

func byName(a, b *metav1.ObjectMeta) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// nodeStorage serves nodes' figures.
type nodeStorage struct{ source Source }

var (
	_ rest.Getter               = &nodeStorage{}
	_ rest.Lister               = &nodeStorage{}
	_ rest.Scoper               = &nodeStorage{}
	_ rest.SingularNameProvider = &nodeStorage{}
)

func (s *nodeStorage) New() runtime.Object     { return &metrics.NodeMetrics{} }
func (s *nodeStorage) NewList() runtime.Object { return &metrics.NodeMetricsList{} }
func (s *nodeStorage) Destroy()                {}
func (s *nodeStorage) Kind() string            { return "NodeMetrics" }
func (s *nodeStorage) NamespaceScoped() bool   { return false }
func (s *nodeStorage) GetSingularName() string { return "" }

// Get implements rest.Getter.
func (s *nodeStorage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	nodes, err := s.source.NodeMetrics(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	for i := range nodes {
		if nodes[i].Name == name {
			return nodes[i].DeepCopy(), nil
		}
	}
	return nil, apierrors.NewNotFound(metrics.Resource("nodemetrics"), name)
}

// List implements rest.Lister.
func (s *nodeStorage) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	nodes, err := s.source.NodeMetrics(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	list := &metrics.NodeMetricsList{Items: []metrics.NodeMetrics{}}
	for i := range nodes {
		if selected(&nodes[i].ObjectMeta, options) {
			list.Items = append(list.Items, *nodes[i].DeepCopy())
		}
	}
	slices.SortFunc(list.Items, func(a, b metrics.NodeMetrics) int { return byName(&a.ObjectMeta, &b.ObjectMeta) })
	return list, nil
}

// ConvertToTable implements rest.TableConvertor.
func (s *nodeStorage) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	t := &table{}
	switch o := object.(type) {
	case *metrics.NodeMetrics:
		t.add(o, o.Name, o.Usage, o.Window)
	case *metrics.NodeMetricsList:
		t.ListMeta = metav1.ListMeta{ResourceVersion: o.ResourceVersion}
		for i := range o.Items {
			t.add(&o.Items[i], o.Items[i].Name, o.Items[i].Usage, o.Items[i].Window)
		}
	}
	return &t.Table, nil
}

// podStorage serves pods' figures.
type podStorage struct{ source Source }

var (
	_ rest.Getter               = &podStorage{}
	_ rest.Lister               = &podStorage{}
	_ rest.Scoper               = &podStorage{}
	_ rest.SingularNameProvider = &podStorage{}
)

func (s *podStorage) New() runtime.Object     { return &metrics.PodMetrics{} }
func (s *podStorage) NewList() runtime.Object { return &metrics.PodMetricsList{} }
func (s *podStorage) Destroy()                {}
func (s *podStorage) Kind() string            { return "PodMetrics" }
func (s *podStorage) NamespaceScoped() bool   { return true }
func (s *podStorage) GetSingularName() string { return "" }

// Get implements rest.Getter.
func (s *podStorage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	pods, err := s.source.PodMetrics(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	namespace := request.NamespaceValue(ctx)
	for i := range pods {
		if pods[i].Namespace == namespace && pods[i].Name == name {
			return pods[i].DeepCopy(), nil
		}
	}
	return nil, apierrors.NewNotFound(metrics.Resource("podmetrics"), namespace+"/"+name)
}

// List implements rest.Lister.
func (s *podStorage) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	pods, err := s.source.PodMetrics(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	namespace := request.NamespaceValue(ctx)
	list := &metrics.PodMetricsList{Items: []metrics.PodMetrics{}}
	for i := range pods {
		if (namespace == "" || pods[i].Namespace == namespace) && selected(&pods[i].ObjectMeta, options) {
			list.Items = append(list.Items, *pods[i].DeepCopy())
		}
	}
	slices.SortFunc(list.Items, func(a, b metrics.PodMetrics) int { return byName(&a.ObjectMeta, &b.ObjectMeta) })
	return list, nil
}

// ConvertToTable implements rest.TableConvertor.
func (s *podStorage) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	t := &table{}
	add := func(p *metrics.PodMetrics) {
		sum := v1.ResourceList{}
		for _, c := range p.Containers {
			for name, q := range c.Usage {
				total, ok := sum[name]
				if !ok {
					total = *resource.NewQuantity(0, q.Format)
				}
				total.Add(q)
				sum[name] = total
			}
		}
		t.add(p, p.Name, sum, p.Window)
	}
	switch o := object.(type) {
	case *metrics.PodMetrics:
		add(o)
	case *metrics.PodMetricsList:
		t.ListMeta = metav1.ListMeta{ResourceVersion: o.ResourceVersion}
		for i := range o.Items {
			add(&o.Items[i])
		}
	}
	return &t.Table, nil
}

// table has a column for each resource that the first row has.
type table struct {
	metav1.Table
	resources []v1.ResourceName
}

func (t *table) add(object runtime.Object, name string, usage v1.ResourceList, window metav1.Duration) {
	if t.ColumnDefinitions == nil {
		for resource := range usage {
			t.resources = append(t.resources, resource)
		}
		slices.Sort(t.resources)
		t.ColumnDefinitions = []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"}}
		for _, resource := range t.resources {
			t.ColumnDefinitions = append(t.ColumnDefinitions,
				metav1.TableColumnDefinition{Name: string(resource), Type: "string", Format: "quantity"})
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, metav1.TableColumnDefinition{Name: "Window", Type: "string", Format: "duration"})
	}
	cells := []any{name}
	for _, resource := range t.resources {
		q := usage[resource]
		cells = append(cells, q.String())
	}
	t.Rows = append(t.Rows, metav1.TableRow{Cells: append(cells, window.Duration.String()), Object: runtime.RawExtension{Object: object}})
}

func unavailable(err error) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf("no figures of usage: %v", err))
}
