package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// submit hands in the manifests, file by file in the order of their names. A file's name says what
// is done with it: documents are created, or applied server-side in one with "update" in it; in one
// with "invalid" they are expected to be refused. Both follow once what was before has settled.
func (s *side) submit(ctx context.Context) error {
	names, err := fs.Glob(files, "manifests/*.yaml")
	if err != nil {
		return err
	}
	for _, name := range names {
		update, invalid := strings.Contains(name, "update"), strings.Contains(name, "invalid")
		if update || invalid {
			if err := s.settle(ctx); err != nil {
				return err
			}
		}
		documents, err := decode(name)
		if err != nil {
			return err
		}
		for i, document := range documents {
			key := fmt.Sprintf("answer/%s/%d/%s/%s", strings.TrimPrefix(name, "manifests/"), i+1, document.GetKind(), document.GetName())
			err := s.hand(ctx, document, update, invalid)
			if invalid != (err != nil) {
				return fmt.Errorf("%s: unexpected answer: %v", key, err)
			}
			s.answers[key] = map[string]any{"error": statusOf(err), "warnings": s.warned.take()}
		}
	}
	return s.settle(ctx)
}

func decode(name string) (all []*unstructured.Unstructured, err error) {
	content, err := files.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096); ; {
		document := &unstructured.Unstructured{}
		if err := decoder.Decode(&document.Object); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if len(document.Object) > 0 {
			all = append(all, document)
		}
	}
}

// hand creates or applies one document. What is valid may have to wait for what was created just
// before it: admission looks at caches, and a kind has to be served.
func (s *side) hand(ctx context.Context, document *unstructured.Unstructured, update, invalid bool) (err error) {
	quota := document.GetKind() == "ResourceQuota"
	if quota { // what each namespace is given is there before it is counted
		if err := s.settle(ctx); err != nil {
			return err
		}
	}
	_ = wait.PollUntilContextTimeout(ctx, poll, 15*time.Second, true, func(ctx context.Context) (bool, error) {
		if said := s.handOnce(ctx, document, update); said == nil || err == nil || ctx.Err() == nil { // not that time is up, but why
			err = said
		}
		return err == nil || invalid, nil
	})
	if err != nil || invalid {
		return err
	}
	if quota {
		return s.settle(ctx) // it limits once it has counted
	}
	return nil
}

func (s *side) handOnce(ctx context.Context, document *unstructured.Unstructured, update bool) error {
	kind := document.GroupVersionKind()
	mapping, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		s.mapper.Reset()
		return err
	}
	var client dynamic.ResourceInterface = s.objects.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if document.GetNamespace() == "" {
			document.SetNamespace("oracle")
		}
		client = s.objects.Resource(mapping.Resource).Namespace(document.GetNamespace())
	}
	if update {
		_, err = client.Apply(ctx, document.GetName(), document, metav1.ApplyOptions{FieldManager: "oracle-apply", Force: true})
	} else {
		_, err = client.Create(ctx, document, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	}
	return err
}

// statusOf is what the API server said; nil if there was no error.
func statusOf(err error) any {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return toJSON(status.Status())
	}
	return nil
}

// settle returns once what the controllers and the scheduler do first has been done. What they do
// after that is awaited by comparing the sides until they agree.
func (s *side) settle(ctx context.Context) error {
	var unsettled string
	err := wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (_ bool, err error) {
		unsettled, err = s.unsettled(ctx)
		return err == nil && unsettled == "", nil
	})
	if err != nil {
		return fmt.Errorf("not settled: %s: %w", unsettled, err)
	}
	return nil
}

// unsettled names something that has not settled, if there is any.
func (s *side) unsettled(ctx context.Context) (string, error) {
	for _, find := range []func(context.Context) (string, error){
		s.unsettledNamespace, s.unsettledNode, s.unsettledQuota, s.unsettledDeployment, s.unsettledDaemonSet, s.unsettledPod,
	} {
		if what, err := find(ctx); err != nil || what != "" {
			return what, err
		}
	}
	return "", nil
}

func (s *side) unsettledNamespace(ctx context.Context) (string, error) {
	namespaces, err := s.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, n := range namespaces.Items {
		_, account := s.kube.CoreV1().ServiceAccounts(n.Name).Get(ctx, "default", metav1.GetOptions{})
		_, root := s.kube.CoreV1().ConfigMaps(n.Name).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if account != nil || root != nil {
			return "namespace " + n.Name, nil
		}
	}
	return "", nil
}

func (s *side) unsettledNode(ctx context.Context) (string, error) {
	nodes, err := s.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, n := range nodes.Items {
		cordoned := func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnschedulable }
		if slices.ContainsFunc(n.Spec.Taints, cordoned) != n.Spec.Unschedulable {
			return "node " + n.Name, nil
		}
	}
	return "", nil
}

func (s *side) unsettledQuota(ctx context.Context) (string, error) {
	quotas, err := s.kube.CoreV1().ResourceQuotas("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, q := range quotas.Items {
		if len(q.Status.Hard) != len(q.Spec.Hard) || len(q.Status.Used) != len(q.Spec.Hard) {
			return "quota " + q.Name, nil
		}
	}
	return "", nil
}

func (s *side) unsettledDeployment(ctx context.Context) (string, error) {
	deployments, err := s.kube.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, d := range deployments.Items {
		limited := slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentReplicaFailure
		})
		if d.Status.ObservedGeneration != d.Generation || !limited && !d.Spec.Paused && d.Status.AvailableReplicas != *d.Spec.Replicas {
			return "deployment " + d.Name, nil
		}
	}
	return "", nil
}

func (s *side) unsettledDaemonSet(ctx context.Context) (string, error) {
	daemons, err := s.kube.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, d := range daemons.Items {
		if d.Status.ObservedGeneration != d.Generation || d.Status.NumberAvailable != d.Status.DesiredNumberScheduled ||
			d.Status.DesiredNumberScheduled == 0 {
			return "daemonset " + d.Name, nil
		}
	}
	return "", nil
}

func (s *side) unsettledPod(ctx context.Context) (string, error) {
	pods, err := s.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, p := range pods.Items {
		refused := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
		})
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodPending && !refused {
			return "pod " + p.Name, nil
		}
	}
	return "", nil
}
