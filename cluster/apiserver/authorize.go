package apiserver

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// newAuthorizer returns what decides who may do what: the group system:masters everything, a node
// what concerns its own pods, all users what RBAC allows. Its second result answers "what may I
// do".
func newAuthorizer(shared informers.SharedInformerFactory) (authorizer.Authorizer, authorizer.RuleResolver) {
	core, roles := shared.Core().V1(), shared.Rbac().V1()
	graph := node.NewGraph()
	// No kubelet of ours publishes resource slices, and pod certificate requests are not served.
	node.AddGraphEventHandlers(graph, core.Nodes(), core.Pods(), core.PersistentVolumes(), shared.Storage().V1().VolumeAttachments(), nil, nil)
	nodes := node.NewAuthorizer(graph, nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules())
	byRole := rbac.New(
		&rbac.RoleGetter{Lister: roles.Roles().Lister()},
		&rbac.RoleBindingLister{Lister: roles.RoleBindings().Lister()},
		&rbac.ClusterRoleGetter{Lister: roles.ClusterRoles().Lister()},
		&rbac.ClusterRoleBindingLister{Lister: roles.ClusterRoleBindings().Lister()},
	)
	masters := authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	known := informed{Authorizer: union.New(nodes, byRole)}
	for _, informer := range []cache.SharedIndexInformer{
		roles.Roles().Informer(), roles.RoleBindings().Informer(), roles.ClusterRoles().Informer(), roles.ClusterRoleBindings().Informer(),
	} {
		known.synced = append(known.synced, informer.HasSyncedChecker())
	}
	return union.New(masters, known), union.NewRuleResolvers(nodes, byRole)
}

// informed decides when informers have what was in the store at the start. Until then no one has a
// role: upstream's server refuses clients that come with its start, who may take that for final.
// Pods have no other server to ask meanwhile.
type informed struct {
	authorizer.Authorizer
	synced []cache.DoneChecker
}

// Authorize implements authorizer.Authorizer.
func (i informed) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	for _, synced := range i.synced {
		select {
		case <-synced.Done():
		case <-ctx.Done():
			return authorizer.DecisionNoOpinion, "", context.Cause(ctx)
		}
	}
	return i.Authorizer.Authorize(ctx, a)
}
