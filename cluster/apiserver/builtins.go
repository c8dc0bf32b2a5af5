package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	systemclasses "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

const (
	rbacHook       = "rbac/bootstrap-roles"
	prioritiesHook = "scheduling/bootstrap-system-priority-classes"
	// bootstrapWorkers is how many objects are made at a time: etcd writes those that come
	// together with one sync of the disk.
	bootstrapWorkers = 16
	bootstrapRetry   = 100 * time.Millisecond
	bootstrapLimit   = 30 * time.Second
	// seenPoll is how often informers are looked at for what was made; they are some milliseconds
	// behind.
	seenPoll = 2 * time.Millisecond
)

// builtins adds the hooks that make the built-in roles, their bindings and the priority classes of
// system pods. They do what the hooks of upstream's registries do (with upstream's roles and its
// rules for reconciling them), which wait a second before they begin and then make one object after
// the other.
func builtins(server *genericapiserver.GenericAPIServer, client kubernetes.Interface, informers rbacinformers.Interface, o Options) {
	add := func(name string, what func(context.Context, *errgroup.Group), then func(context.Context)) {
		server.AddPostStartHookOrDie(name, func(hook genericapiserver.PostStartHookContext) error {
			try := func(ctx context.Context) (bool, error) {
				work, ctx := errgroup.WithContext(ctx)
				work.SetLimit(bootstrapWorkers)
				what(ctx, work)
				err := work.Wait()
				if err != nil {
					o.Log.Warn("built-in objects", "hook", name, "err", err)
				}
				return err == nil, nil
			}
			if err := wait.PollUntilContextTimeout(hook, bootstrapRetry, bootstrapLimit, true, try); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			then(hook)
			return nil
		})
	}
	roles := &awaited{stores: map[string]cache.Store{}, log: o.Log}
	for kind, informer := range map[string]cache.SharedIndexInformer{
		kindOf(&rbacv1.ClusterRole{}):        informers.ClusterRoles().Informer(),
		kindOf(&rbacv1.ClusterRoleBinding{}): informers.ClusterRoleBindings().Informer(),
		kindOf(&rbacv1.Role{}):               informers.Roles().Informer(), kindOf(&rbacv1.RoleBinding{}): informers.RoleBindings().Informer(),
	} {
		roles.stores[kind] = informer.GetStore()
	}
	add(rbacHook, func(ctx context.Context, work *errgroup.Group) { ensureRoles(ctx, work, client, o, roles.add) }, roles.wait)
	add(prioritiesHook, func(ctx context.Context, work *errgroup.Group) { ensurePriorities(ctx, work, client) }, func(context.Context) {})
}

// awaited are objects that the authorizer has to know before the server is ready: it decides by
// informers, which follow the store. A part of the process that begins as soon as the server is
// ready would be refused what it may do.
type awaited struct {
	stores map[string]cache.Store // of informers, by kind
	log    *slog.Logger

	mu      sync.Mutex
	objects map[runtime.Object]bool
}

// add is safe for concurrent use.
func (a *awaited) add(obj runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.objects == nil {
		a.objects = map[runtime.Object]bool{}
	}
	a.objects[obj] = true
}

func kindOf(obj runtime.Object) string { return fmt.Sprintf("%T", obj) }

// wait returns when the informers show all objects as they are or newer. One that someone deletes
// meanwhile is given up after bootstrapLimit.
func (a *awaited) wait(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := wait.PollUntilContextTimeout(ctx, seenPoll, bootstrapLimit, true, func(context.Context) (bool, error) {
		for obj := range a.objects {
			if !seen(a.stores[kindOf(obj)], obj) {
				return false, nil
			}
			delete(a.objects, obj)
		}
		return true, nil
	})
	if err != nil && ctx.Err() == nil {
		a.log.Warn("the authorizer does not know all built-in roles yet", "missing", len(a.objects))
	}
}

// seen reports whether an informer's store has an object as it is or newer.
func seen(store cache.Store, obj runtime.Object) bool {
	now, err := meta.Accessor(obj)
	if err != nil {
		return true
	}
	known, exists, err := store.Get(obj)
	if err != nil || !exists {
		return false
	}
	then, err := meta.Accessor(known)
	if err != nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(then.GetResourceVersion(), now.GetResourceVersion())
	return err == nil && order >= 0
}

// ensureRoles makes the built-in roles and bindings, or adds what they lack, and tells made of
// each.
func ensureRoles(ctx context.Context, work *errgroup.Group, client kubernetes.Interface, o Options, made func(runtime.Object)) {
	e := &ensuring{work: work, rbac: client.RbacV1(), namespaces: client.CoreV1().Namespaces(), made: made}
	// Most of them have no namespace. Two lists tell what some 140 requests would.
	roles, err := e.rbac.ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		work.Go(func() error { return fmt.Errorf("list ClusterRoles: %w", err) })
		return
	}
	bindings, err := e.rbac.ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		work.Go(func() error { return fmt.Errorf("list ClusterRoleBindings: %w", err) })
		return
	}
	e.clusterRoles(roles.Items)
	e.clusterBindings(ctx, bindings.Items, o)
	e.namespaceRoles()
}

// ensuring makes roles and bindings, several at a time.
type ensuring struct {
	work       *errgroup.Group
	rbac       rbacclient.RbacV1Interface
	namespaces coreclient.NamespaceInterface
	made       func(runtime.Object)
}

func (e *ensuring) role(owner reconciliation.RuleOwner, modifier reconciliation.RuleOwnerModifier) {
	options := reconciliation.ReconcileRoleOptions{Role: owner, Client: modifier, Confirm: true}
	e.work.Go(func() error {
		return retried(func() error {
			result, err := options.Run()
			if err == nil {
				e.made(result.Role.GetObject())
			}
			return err
		})
	})
}

func (e *ensuring) binding(b reconciliation.RoleBinding, modifier reconciliation.RoleBindingModifier) {
	options := reconciliation.ReconcileRoleBindingOptions{RoleBinding: b, Client: modifier, Confirm: true}
	e.work.Go(func() error {
		return retried(func() error {
			result, err := options.Run()
			if err == nil {
				e.made(result.RoleBinding.GetObject())
			}
			return err
		})
	})
}

func (e *ensuring) clusterRoles(listed []rbacv1.ClusterRole) {
	old := map[string]*rbacv1.ClusterRole{}
	for i := range listed {
		old[listed[i].Name] = &listed[i]
	}
	for _, roles := range [][]rbacv1.ClusterRole{
		bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles(), {metricsReader()}, joinRoles(),
	} {
		for i := range roles {
			e.role(reconciliation.ClusterRoleRuleOwner{ClusterRole: &roles[i]}, &listedRole{
				ClusterRoleModifier: reconciliation.ClusterRoleModifier{Client: e.rbac.ClusterRoles()}, old: old[roles[i].Name],
			})
		}
	}
}

func (e *ensuring) clusterBindings(ctx context.Context, listed []rbacv1.ClusterRoleBinding, o Options) {
	old := map[string]*rbacv1.ClusterRoleBinding{}
	for i := range listed {
		old[listed[i].Name] = &listed[i]
	}
	for _, bindings := range [][]rbacv1.ClusterRoleBinding{
		bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings(), joinBindings(o),
	} {
		for i := range bindings {
			e.binding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &bindings[i]}, &listedBinding{
				ClusterRoleBindingClientAdapter: reconciliation.ClusterRoleBindingClientAdapter{Client: e.rbac.ClusterRoleBindings()},
				old:                             old[bindings[i].Name],
			})
		}
	}
	// Nodes lose what agents read when other machines cannot join any more.
	if agents := old[agentRole]; agents != nil && o.URL() == "" && agents.Annotations[rbacv1.AutoUpdateAnnotationKey] == "true" {
		e.work.Go(func() error {
			return retried(func() error {
				err := e.rbac.ClusterRoleBindings().Delete(ctx, agentRole, metav1.DeleteOptions{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				return err
			})
		})
	}
}

func (e *ensuring) namespaceRoles() {
	role := func(r *rbacv1.Role) {
		e.role(reconciliation.RoleRuleOwner{Role: r}, reconciliation.RoleModifier{Client: e.rbac, NamespaceClient: e.namespaces})
	}
	binding := func(b *rbacv1.RoleBinding) {
		e.binding(reconciliation.RoleBindingAdapter{RoleBinding: b},
			reconciliation.RoleBindingClientAdapter{Client: e.rbac, NamespaceClient: e.namespaces})
	}
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		for i := range roles {
			role(&roles[i])
		}
	}
	for _, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for i := range bindings {
			binding(&bindings[i])
		}
	}
	readers, readings := joinReaders()
	for i := range readers {
		role(&readers[i])
		binding(&readings[i])
	}
}

// listedRole is the client for one ClusterRole. It answers the first Get with what a list has
// shown, and asks from then on: a second Get means that someone else changed the role meanwhile.
type listedRole struct {
	reconciliation.ClusterRoleModifier
	old   *rbacv1.ClusterRole // nil if the list lacked it
	asked bool
}

// Get implements reconciliation.RuleOwnerModifier.
func (l *listedRole) Get(namespace, name string) (reconciliation.RuleOwner, error) {
	switch {
	case l.asked:
		return l.ClusterRoleModifier.Get(namespace, name)
	case l.old == nil:
		l.asked = true
		return nil, apierrors.NewNotFound(rbacv1.Resource("clusterroles"), name)
	}
	l.asked = true
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: l.old}, nil
}

// listedBinding is for a ClusterRoleBinding what listedRole is for a ClusterRole.
type listedBinding struct {
	reconciliation.ClusterRoleBindingClientAdapter
	old   *rbacv1.ClusterRoleBinding
	asked bool
}

// Get implements reconciliation.RoleBindingModifier.
func (l *listedBinding) Get(namespace, name string) (reconciliation.RoleBinding, error) {
	switch {
	case l.asked:
		return l.ClusterRoleBindingClientAdapter.Get(namespace, name)
	case l.old == nil:
		l.asked = true
		return nil, apierrors.NewNotFound(rbacv1.Resource("clusterrolebindings"), name)
	}
	l.asked = true
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: l.old}, nil
}

// metricsReader lets those who may view a namespace, or the cluster, see what it uses. Elsewhere it
// comes with metrics-server, which serves what this server does itself.
func metricsReader() rbacv1.ClusterRole {
	const aggregateTo = "rbac.authorization.k8s.io/aggregate-to-"
	return rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "system:aggregated-metrics-reader",
			Labels:      map[string]string{aggregateTo + "view": "true", aggregateTo + "edit": "true", aggregateTo + "admin": "true"},
			Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
		},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list", "watch"},
		}},
	}
}

// retried calls f again while others change the same object.
func retried(f func() error) error {
	return retry.OnError(retry.DefaultBackoff, func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsServiceUnavailable(err)
	}, f)
}

// ensurePriorities makes the priority classes of system pods.
func ensurePriorities(ctx context.Context, work *errgroup.Group, client kubernetes.Interface) {
	classes := client.SchedulingV1().PriorityClasses()
	for _, class := range systemclasses.SystemPriorityClasses() {
		work.Go(func() error {
			_, err := classes.Get(ctx, class.Name, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return err
			}
			_, err = classes.Create(ctx, class.DeepCopy(), metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
	}
}

// ownHooks are made by builtins instead of upstream's registries.
var ownHooks = map[string]bool{rbacHook: true, prioritiesHook: true}
