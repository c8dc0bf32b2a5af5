package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// builtInRoles counts roles and bindings.
func builtInRoles(ctx context.Context, client kubernetes.Interface) (int, error) {
	rbac, all := client.RbacV1(), metav1.ListOptions{}
	clusterRoles, e1 := rbac.ClusterRoles().List(ctx, all)
	clusterBindings, e2 := rbac.ClusterRoleBindings().List(ctx, all)
	roles, e3 := rbac.Roles(metav1.NamespaceAll).List(ctx, all)
	bindings, e4 := rbac.RoleBindings(metav1.NamespaceAll).List(ctx, all)
	if err := errors.Join(e1, e2, e3, e4); err != nil {
		return 0, err
	}
	return len(clusterRoles.Items) + len(clusterBindings.Items) + len(roles.Items) + len(bindings.Items), nil
}

// A part of the process begins when the server is ready, and may do at once what the built-in roles
// say. The server is not ready while the authorizer's informers have not seen them: here one of
// them is held up.
func TestAReadyServerKnowsTheBuiltInRoles(t *testing.T) {
	const late = "system:controller:token-cleaner"
	readers, readings := joinReaders()
	builtIn := 1 + len(joinRoles()) + len(joinBindings(Options{})) + len(readers) + len(readings) + // metricsReader
		len(bootstrappolicy.ClusterRoles()) + len(bootstrappolicy.ControllerRoles()) +
		len(bootstrappolicy.ClusterRoleBindings()) + len(bootstrappolicy.ControllerRoleBindings())
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		builtIn += len(roles)
	}
	for _, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		builtIn += len(bindings)
	}
	s, err := New(broken(t, func(*Options) {}))
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan struct{})
	show := sync.OnceFunc(func() { close(seen) })
	err = s.Informers().Rbac().V1().RoleBindings().Informer().SetTransform(func(obj any) (any, error) {
		if b, ok := obj.(*rbacv1.RoleBinding); ok && b.Name == late {
			<-seen
		}
		return obj, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		show()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	eventually(t, "all but the roles is ready", func() (bool, error) {
		select {
		case <-s.Ready():
			t.Fatal("the server is ready, and its authorizer does not know a role")
		default:
		}
		made, err := builtInRoles(t.Context(), client)
		if err != nil || made < builtIn {
			return false, fmt.Errorf("%d of %d roles and bindings, %w", made, builtIn, err)
		}
		said, err := client.CoreV1().RESTClient().Get().AbsPath("/readyz").Param("verbose", "true").DoRaw(t.Context())
		var missing []string
		for line := range strings.Lines(string(said)) {
			if check, ok := strings.CutPrefix(line, "[-]"); ok && !strings.HasPrefix(check, "informer-sync") {
				missing = append(missing, check)
			}
		}
		return len(missing) == 1 && strings.Contains(missing[0], rbacHook), err
	})
	show()
	select {
	case <-s.Ready():
	case <-time.After(patience):
		t.Fatal("the server is not ready, although its authorizer knows all roles")
	}
	review, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:kube-system:token-cleaner",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: metav1.NamespaceSystem, Verb: "list", Resource: "secrets"},
		},
	}, metav1.CreateOptions{})
	if err != nil || !review.Status.Allowed {
		t.Errorf("the token cleaner may not list Secrets: %+v, %v", review, err)
	}
}

// Each start brings some 140 roles and bindings up to date, and asks for them with two requests.
// One that someone else makes or changes after that is asked for again.
func TestBuiltInRolesAreListedOnce(t *testing.T) {
	client := fake.NewClientset()
	ensure := func() {
		t.Helper()
		client.ClearActions()
		work, ctx := errgroup.WithContext(t.Context())
		work.SetLimit(bootstrapWorkers)
		ensureRoles(ctx, work, client, Options{}, func(runtime.Object) {})
		if err := work.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	count := func(verb string) (n int) {
		for _, a := range client.Actions() {
			if r := a.GetResource().Resource; a.GetVerb() == verb && (r == "clusterroles" || r == "clusterrolebindings") {
				n++
			}
		}
		return n
	}
	ensure()
	if gets, lists := count("get"), count("list"); gets != 0 || lists != 2 {
		t.Errorf("the first start: %d gets and %d lists, want none and 2", gets, lists)
	}
	if made := count("create"); made < 100 {
		t.Errorf("%d roles and bindings were made", made)
	}

	role, err := client.RbacV1().ClusterRoles().Get(t.Context(), "view", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Labels = nil
	if _, err := client.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	ensure()
	if gets, made, updates := count("get"), count("create"), count("update"); gets != 0 || made != 0 || updates != 1 {
		t.Errorf("a later start, and a role that lacks labels: %d gets, %d made, %d updates, want only an update", gets, made, updates)
	}

	for _, resource := range []string{"clusterroles", "clusterrolebindings"} { // all are made just after the list
		client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			if resource == "clusterroles" {
				return true, &rbacv1.ClusterRoleList{}, nil
			}
			return true, &rbacv1.ClusterRoleBindingList{}, nil
		})
	}
	ensure()
	if gets, made := count("get"), count("create"); gets != made || gets < 100 {
		t.Errorf("roles that came after the list: %d gets after %d creations, want one for each", gets, made)
	}
}
