package apiserver

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/ptr"
)

// waitSeen waits until the server's own informer has an object for which ok is true: what decides
// about requests is the informers' state, which follows the store's.
func waitSeen(t *testing.T, informer cache.SharedIndexInformer, ok func(obj any) bool) {
	t.Helper()
	seen := make(chan struct{}, 1)
	look := func(obj any) {
		if ok(obj) {
			select {
			case seen <- struct{}{}:
			default:
			}
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }()
	select {
	case <-seen:
	case <-time.After(patience):
		t.Fatal("an informer did not see an object that was made")
	}
}

// waitDeleted waits until the server's own informer has lost the object.
func waitDeleted(t *testing.T, informer cache.SharedIndexInformer, key string) {
	t.Helper()
	gone := make(chan struct{}, 1)
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if got, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); got == key {
			gone <- struct{}{}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }()
	if _, exists, _ := informer.GetStore().GetByKey(key); !exists {
		return
	}
	select {
	case <-gone:
	case <-time.After(patience):
		t.Fatal("an informer did not see that an object was deleted")
	}
}

func TestRoles(t *testing.T) {
	client := admin(t)
	ns := namespace(t, client)
	jane := clientOf(t, server.ClientConfig("jane", "devs"))
	_, err := jane.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	want := fmt.Sprintf(`pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace %q`, ns)
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("without a role: %v", err)
	}
	bound, err := client.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "devs"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "devs"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitSeen(t, server.Informers().Rbac().V1().RoleBindings().Informer(), func(obj any) bool {
		return obj.(*rbacv1.RoleBinding).UID == bound.UID
	})
	may := func(verb, group, resource string) bool {
		review, err := jane.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: ns, Verb: verb, Group: group, Resource: resource,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return review.Status.Allowed
	}
	if may("list", "", "secrets") || may("delete", "apps", "deployments") {
		t.Error("a viewer may read secrets or delete")
	}
	// The role view is put together from others by a controller, which does not run here.
	rules, err := jane.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns},
	}, metav1.CreateOptions{})
	if err != nil || len(rules.Status.ResourceRules) == 0 {
		t.Errorf("rules review: %+v, %v", rules, err)
	}
	// No one can hand out what he does not have.
	_, err = clientOf(t, server.ClientConfig("system:serviceaccount:kube-system:clusterrole-aggregation-controller",
		"system:serviceaccounts")).RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "everything"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}},
	}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("escalation: %v", err)
	}
}

func TestServiceAccountTokens(t *testing.T) {
	client := admin(t)
	ns := namespace(t, client)
	pod, err := client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Spec.ServiceAccountName != "default" || len(pod.Spec.Volumes) != 1 || pod.Spec.Volumes[0].Projected == nil {
		t.Errorf("the pod got no token volume: %+v", pod.Spec)
	}
	token, err := client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: ptr.To[int64](600),
			BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "p", UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(overTLS(t))
	config.BearerToken = token.Status.Token
	who, err := clientOf(t, config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), selfReview(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	info := who.Status.UserInfo
	if info.Username != "system:serviceaccount:"+ns+":default" || info.Extra["authentication.kubernetes.io/pod-name"][0] != "p" {
		t.Errorf("taken for %+v", info)
	}
	review := func(token string, audiences ...string) authenticationv1.TokenReviewStatus {
		r, err := client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status
	}
	if s := review(token.Status.Token); !s.Authenticated || s.User.Username != info.Username {
		t.Errorf("review %+v", s)
	}
	if s := review(token.Status.Token, "somebody-else"); s.Authenticated {
		t.Errorf("review for another audience %+v", s)
	}
	if s := review(token.Status.Token + "x"); s.Authenticated {
		t.Errorf("review of a changed token %+v", s)
	}
	other, err := client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
			Kind: "Pod", APIVersion: "v1", Name: "p",
			UID: pod.UID,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Pods(ns).Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	waitDeleted(t, server.Informers().Core().V1().Pods().Informer(), ns+"/p")
	// This one was not seen before, so that no one remembers it as good.
	if s := review(other.Status.Token); s.Authenticated {
		t.Error("a token outlived the pod that it is bound to")
	}
}

// Tokens in Secrets are signed by the controllers, in an older form that does not expire.
func TestTokensInSecrets(t *testing.T) {
	client := admin(t)
	ns := namespace(t, client)
	account, err := client.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Namespace: ns, Annotations: map[string]string{
			corev1.ServiceAccountNameKey: account.Name, corev1.ServiceAccountUIDKey: string(account.UID),
		}},
		Type: corev1.SecretTypeServiceAccountToken,
	}
	key, err := keyutil.PrivateKeyFromFile(server.options.PKI.ServiceAccountKey)
	if err != nil {
		t.Fatal(err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		t.Fatal(err)
	}
	claims, private := serviceaccount.LegacyClaims(*account, *secret)
	token, err := generator.GenerateToken(t.Context(), claims, private)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(overTLS(t))
	config.BearerToken = token
	ask := func() (*authenticationv1.SelfSubjectReview, error) {
		return clientOf(t, config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), selfReview(), metav1.CreateOptions{})
	}
	if who, err := ask(); !apierrors.IsUnauthorized(err) {
		t.Errorf("before there is such a Secret: %+v, %v", who, err)
	}
	secret.Data = map[string][]byte{corev1.ServiceAccountTokenKey: []byte(token)}
	made, err := client.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitSeen(t, server.Informers().Core().V1().Secrets().Informer(), func(obj any) bool { return obj.(*corev1.Secret).UID == made.UID })
	who, err := ask()
	if err != nil || who.Status.UserInfo.Username != "system:serviceaccount:"+ns+":default" {
		t.Errorf("%+v, %v", who, err)
	}
}

// complaints counts lines of a log.
type complaints struct{ atomic.Int64 }

func (c *complaints) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "authenticate") {
		c.Add(1)
	}
	return len(p), nil
}

// Anybody could fill the log with credentials that are no good.
func TestBadCredentialsAreNotLogged(t *testing.T) {
	var log complaints
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(&log, nil)))
	defer klog.SetSlogLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	for _, token := range []string{"x", "a.b.c", strings.Repeat("x", 10000)} {
		for _, path := range []string{"/api", "/healthz"} {
			resp, _ := get(t, false, path, "Authorization", "Bearer "+token)
			if resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s with token %.10s: %s", path, token, resp.Status)
			}
		}
	}
	if n := log.Load(); n != 0 {
		t.Errorf("%d lines logged", n)
	}
}

func TestBootstrapTokens(t *testing.T) {
	client := admin(t)
	made, err := client.CoreV1().Secrets("kube-system").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"auth-extra-groups": "system:bootstrappers:test", "expiration": time.Now().Add(time.Hour).Format(time.RFC3339),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, func(ctx context.Context) error {
		return client.CoreV1().Secrets(made.Namespace).Delete(ctx, made.Name, metav1.DeleteOptions{})
	})
	waitSeen(t, server.Informers().Core().V1().Secrets().Informer(), func(obj any) bool { return obj.(*corev1.Secret).UID == made.UID })
	config := rest.AnonymousClientConfig(overTLS(t))
	config.BearerToken = "abcdef.0123456789abcdef"
	who, err := clientOf(t, config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), selfReview(), metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != "system:bootstrap:abcdef" ||
		!contains(who.Status.UserInfo.Groups, "system:bootstrappers:test") {
		t.Errorf("%+v, %v", who, err)
	}
}

func TestNodesReachTheirOwnObjectsOnly(t *testing.T) {
	client := admin(t)
	ns := namespace(t, client)
	files, err := server.options.PKI.Node("n1", []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(overTLS(t))
	config.CertFile, config.KeyFile = files.Client, files.Client
	n1 := clientOf(t, config)
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if own, err = n1.CoreV1().Nodes().Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	atEnd(t, func(ctx context.Context) error {
		return client.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{})
	})
	if len(own.Spec.Taints) != 1 || own.Spec.Taints[0].Key != corev1.TaintNodeNotReady {
		t.Errorf("a new node's taints: %v", own.Spec.Taints)
	}
	own.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := n1.CoreV1().Nodes().UpdateStatus(t.Context(), own, metav1.UpdateOptions{}); err != nil {
		t.Errorf("own status: %v", err)
	}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	atEnd(t, func(ctx context.Context) error {
		return client.CoreV1().Nodes().Delete(ctx, "n2", metav1.DeleteOptions{})
	})
	other := own.DeepCopy()
	other.Name, other.UID, other.ResourceVersion = "n2", "", ""
	if _, err := n1.CoreV1().Nodes().UpdateStatus(t.Context(), other, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another node's status: %v", err)
	}
	for _, name := range []string{"used", "unused"} {
		if _, err := client.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{
			NodeName:   "n1",
			Containers: []corev1.Container{{Name: "main", Image: "image"}},
			Volumes:    []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "used"}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// What belongs to which node is noted alongside the informer of pods, at a time of its own.
	eventually(t, "a node reads a secret of its pod", func() (bool, error) {
		_, err := n1.CoreV1().Secrets(ns).Get(t.Context(), "used", metav1.GetOptions{})
		return err == nil, err
	})
	if _, err := n1.CoreV1().Secrets(ns).Get(t.Context(), "unused", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another secret: %v", err)
	}
	mirror := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "mirror", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}},
		Spec:       corev1.PodSpec{NodeName: "n2", Containers: []corev1.Container{{Name: "main", Image: "image"}}},
	}
	if _, err := n1.CoreV1().Pods(ns).Create(t.Context(), mirror, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a pod on another node: %v", err)
	}
}
