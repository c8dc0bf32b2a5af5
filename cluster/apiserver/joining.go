package apiserver

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
	"github.com/coracle-project/coracle/cluster/node/token"
)

// What a machine needs to join a cluster, by kubeadm's names and rules, so that its clients work,
// too: anyone may read the ConfigMap cluster-info, bootstrap tokens may ask for a node's client
// certificate, and nodes for the next one.

// clusterInfoPath is what a machine without credentials reads first. Signatures by bootstrap tokens
// show that it is genuine.
const clusterInfoPath = "/api/v1/namespaces/" + metav1.NamespacePublic + "/configmaps/" + bootstrapapi.ConfigMapClusterInfo

// agentRole is what nodes of ours need beyond a kubelet's rights: what the service proxy, the DNS
// and network policies follow.
const agentRole = "coracle:agent"

const (
	clusterInfoRole = "kubeadm:bootstrap-signer-clusterinfo"
	getNodesRole    = "kubeadm:get-nodes"
	servingRole     = "coracle:kubelet-serving-approver"
)

// joinRoles let bootstrap tokens see whether a node of a name exists, our controller approve
// serving certificates of kubelets, which upstream's leaves to people, and agents read what they
// follow.
func joinRoles() []rbacv1.ClusterRole {
	return []rbacv1.ClusterRole{
		{
			ObjectMeta: builtinMeta(getNodesRole),
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}}},
		},
		{
			ObjectMeta: builtinMeta(servingRole),
			Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"signers"},
				ResourceNames: []string{certificatesv1.KubeletServingSignerName}, Verbs: []string{"approve"},
			}},
		},
		{
			ObjectMeta: builtinMeta(agentRole),
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"pods", "services", "nodes", "namespaces"}, Verbs: follow},
				{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: follow},
				{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies", "servicecidrs", "ipaddresses"}, Verbs: follow},
				{APIGroups: []string{"policy.networking.k8s.io"}, Resources: []string{"clusternetworkpolicies"}, Verbs: follow},
				{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, Verbs: follow},
				{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch", "update"}},
				// A node that leaves deletes itself. NodeRestriction refuses to delete another, and
				// ownNode one with taints of an administrator.
				{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"delete"}},
			},
		},
	}
}

var follow = []string{"get", "list", "watch"}

// joinBindings give these roles. Nodes get what agents read only if other machines can join: it is
// more than the Node authorizer lets a node read.
func joinBindings(o Options) []rbacv1.ClusterRoleBinding {
	bind := func(name, role string, to rbacv1.Subject) rbacv1.ClusterRoleBinding {
		return rbacv1.ClusterRoleBinding{
			ObjectMeta: builtinMeta(name), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{to},
		}
	}
	group := func(name string) rbacv1.Subject {
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
	}
	const requests = "system:certificates.k8s.io:certificatesigningrequests:"
	all := []rbacv1.ClusterRoleBinding{
		bind("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", group(token.JoinersGroup)),
		bind("kubeadm:node-autoapprove-bootstrap", requests+"nodeclient", group(token.JoinersGroup)),
		bind("kubeadm:node-autoapprove-certificate-rotation", requests+"selfnodeclient", group(user.NodesGroup)),
		bind(getNodesRole, getNodesRole, group(token.JoinersGroup)),
		bind(servingRole, servingRole, rbacv1.Subject{
			Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: "certificate-controller",
		}),
	}
	if o.URL() != "" {
		all = append(all, bind(agentRole, agentRole, group(user.NodesGroup)))
	}
	return all
}

// joinReaders let anyone read cluster-info, and tokens and nodes the settings of agents.
func joinReaders() (roles []rbacv1.Role, bindings []rbacv1.RoleBinding) {
	add := func(namespace, name, configMap string, verbs []string, to ...rbacv1.Subject) {
		meta := builtinMeta(name)
		meta.Namespace = namespace
		roles = append(roles, rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{configMap}, Verbs: verbs,
		}}})
		bindings = append(bindings, rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, Subjects: to,
		})
	}
	add(metav1.NamespacePublic, clusterInfoRole, bootstrapapi.ConfigMapClusterInfo, []string{"get"},
		rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user.Anonymous})
	add(metav1.NamespaceSystem, agentRole, clusterinfo.AgentConfigMap, follow,
		rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: token.JoinersGroup},
		rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: user.NodesGroup})
	return roles, bindings
}

// builtinMeta marks an object as one that is completed at each start.
func builtinMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"}}
}
