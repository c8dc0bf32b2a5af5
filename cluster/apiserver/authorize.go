package apiserver

import (
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// newAuthorizer returns what decides who may do what: the group system:masters everything, a node
// what concerns its own pods, everybody what RBAC says. Its second result answers "what may I do".
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
	return union.New(masters, nodes, byRole), union.NewRuleResolvers(nodes, byRole)
}
