package apiserver

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A node that was taken over neither chooses addresses nor sheds what an administrator has set.
func TestWhatANodeMayNotDoWithItsNode(t *testing.T) {
	const name = "own-node"
	all := admin(t)
	bound, err := all.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: agentRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:node:" + name}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, func(ctx context.Context) error {
		return all.RbacV1().ClusterRoleBindings().Delete(ctx, bound.Name, metav1.DeleteOptions{})
	})
	waitSeen(t, server.Informers().Rbac().V1().ClusterRoleBindings().Informer(), func(obj any) bool {
		return obj.(*rbacv1.ClusterRoleBinding).UID == bound.UID
	})
	nodes := clientOf(t, server.ClientConfig("system:node:"+name, "system:nodes")).CoreV1().Nodes()
	refused := func(what, why string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", what, err)
		}
	}
	register := func(n corev1.Node) error {
		n.Name = name
		_, err := nodes.Create(t.Context(), &n, metav1.CreateOptions{})
		return err
	}
	const key = `{"metadata":{"annotations":{"coracle.dev/wireguard":"AAAA"}}}` // overlay.KeyAnnotation
	other := clientOf(t, server.ClientConfig("system:node:another-"+name, "system:nodes")).CoreV1().Nodes()
	const own = "does not choose its own podCIDRs"
	refused("create with podCIDRs", own, register(corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"0.0.0.0/0"}, PodCIDR: "0.0.0.0/0"}}))
	refused("create with podCIDR", own, register(corev1.Node{Spec: corev1.NodeSpec{PodCIDR: "10.85.0.0/16"}}))
	if err := register(corev1.Node{}); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.Patch(t.Context(), name, types.MergePatchType, []byte(key), metav1.PatchOptions{}); err != nil {
		t.Errorf("publish its own key: %v", err)
	}
	_, err = other.Patch(t.Context(), name, types.MergePatchType, []byte(key), metav1.PatchOptions{})
	refused("publish another node's key", "is not allowed to modify node", err)
	_, err = nodes.Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"podCIDR":"10.85.0.0/16","podCIDRs":["10.85.0.0/16"]}}`),
		metav1.PatchOptions{})
	refused("set podCIDRs", own, err)
	const labelled = `{"metadata":{"labels":{"%s":"a"}},"spec":{"taints":null}}`
	for what, patch := range map[string]string{
		"taint example.com/secret":                     `{"spec":{"taints":[{"key":"example.com/secret","effect":"NoSchedule"}]}}`,
		"taint node.kubernetes.io/out-of-service":      `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]}}`,
		"label node-restriction.kubernetes.io/tenant":  fmt.Sprintf(labelled, "node-restriction.kubernetes.io/tenant"),
		"label a.node-restriction.kubernetes.io/other": fmt.Sprintf(labelled, "a.node-restriction.kubernetes.io/other"),
	} {
		if _, err := all.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType,
			[]byte(`{"metadata":{"labels":null},"spec":{"taints":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := all.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		refused("delete with "+what, "the "+what+": an administrator does", nodes.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	const cordoned = `{"metadata":{"labels":null},"spec":{"taints":[{"key":"node.kubernetes.io/unschedulable","effect":"NoSchedule"}]}}`
	if _, err := all.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(cordoned), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := nodes.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete a Node that is only cordoned: %v", err)
	}
}
