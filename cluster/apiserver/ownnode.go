package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// ownNodePlugin is the admission plugin that refuses what NodeRestriction lets a node do with its
// own Node, and what a node that was taken over would do first.
const ownNodePlugin = "OwnNode"

// ownNode is an admission plugin for requests of nodes. A node does not choose its pods' networks:
// their controller would count addresses of others as its own. And it does not delete a Node with
// taints of an administrator: it would register again without them.
type ownNode struct{ *admission.Handler }

func registerOwnNode(plugins *admission.Plugins) {
	plugins.Register(ownNodePlugin, func(io.Reader) (admission.Interface, error) {
		return ownNode{admission.NewHandler(admission.Create, admission.Update, admission.Delete)}, nil
	})
}

// Validate implements admission.ValidationInterface.
func (ownNode) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != api.Resource("nodes") || !slices.Contains(a.GetUserInfo().GetGroups(), user.NodesGroup) {
		return nil
	}
	var old, now api.Node
	if n, ok := a.GetOldObject().(*api.Node); ok {
		old = *n
	}
	if n, ok := a.GetObject().(*api.Node); ok {
		now = *n
	}
	switch {
	case a.GetOperation() != admission.Delete && !slices.Equal(old.Spec.PodCIDRs, now.Spec.PodCIDRs):
		return admission.NewForbidden(a, errors.New("a node does not choose its own podCIDRs"))
	case a.GetOperation() == admission.Delete:
		if kept := administrators(&old); kept != "" {
			return admission.NewForbidden(a, fmt.Errorf("a node does not delete its Node while that has the %s: an administrator does", kept))
		}
	}
	return nil
}

// conditionTaints are those that controllers derive from a node's conditions, and set again.
var conditionTaints = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable, corev1.TaintNodeMemoryPressure,
	corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable,
}

// administrators names a taint or label of a Node that only an administrator may set, if it has
// any.
func administrators(n *api.Node) string {
	for _, t := range n.Spec.Taints {
		if !slices.Contains(conditionTaints, t.Key) {
			return "taint " + t.Key
		}
	}
	for label := range n.Labels {
		prefix, _, _ := strings.Cut(label, "/")
		if prefix == corev1.LabelNamespaceNodeRestriction || strings.HasSuffix(prefix, "."+corev1.LabelNamespaceNodeRestriction) {
			return "label " + label
		}
	}
	return ""
}
