package integration

import (
	"context"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// A service account's token is who it says, may what RBAC gives it and no more, and ends with the
// pod that it is bound to.
func TestServiceAccountToken(t *testing.T) {
	t.Parallel()
	ctx, ns := namespace(t)
	accounts := boat.kube.CoreV1().ServiceAccounts(ns)
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "cox"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err := boat.kube.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "seat"}, Spec: corev1.PodSpec{
		ServiceAccountName: "cox", NodeSelector: map[string]string{"nowhere": ""}, Containers: []corev1.Container{{Name: "a", Image: image}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := accounts.CreateToken(ctx, "cox", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To[int64](600), BoundObjectRef: &authenticationv1.BoundObjectReference{
			Kind: "Pod", APIVersion: "v1", Name: "seat",
			UID: pod.UID,
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(boat.config)
	config.BearerToken = token.Status.Token
	cox, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	who, err := cox.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != "system:serviceaccount:"+ns+":cox" ||
		who.Status.UserInfo.Extra["authentication.kubernetes.io/pod-name"][0] != "seat" {
		t.Errorf("the token is of %+v, %v", who.Status.UserInfo, err)
	}
	if _, err := cox.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: %v", err)
	}
	role, err := boat.kube.RbacV1().Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "look"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := boat.kube.RbacV1().RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "cox"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "cox", Namespace: ns}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the binding takes effect", func() (bool, error) {
		_, err := cox.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		return err == nil, err
	})
	for what, try := range map[string]func(context.Context) error{
		"another verb": func(ctx context.Context) error {
			return cox.CoreV1().Pods(ns).Delete(ctx, "seat", metav1.DeleteOptions{})
		},
		"another namespace": func(ctx context.Context) error {
			_, err := cox.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			return err
		},
		"more than it has itself": func(ctx context.Context) error {
			role := role.DeepCopy()
			role.Rules[0].Verbs = []string{"*"}
			_, err := cox.RbacV1().Roles(ns).Update(ctx, role, metav1.UpdateOptions{})
			return err
		},
	} {
		if err := try(ctx); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := boat.kube.CoreV1().Pods(ns).Delete(ctx, "seat", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the token ends with its pod", func() (bool, error) {
		_, err := cox.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		return apierrors.IsUnauthorized(err), err
	})
}
