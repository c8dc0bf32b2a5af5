package apitest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/coracle-project/coracle/cluster/client"
)

// As has the API refuse what upstream's bootstrap policy does not let these service accounts of kube-system
// do. The test fails if anything is refused. Lists and watches are not checked: informers read with
// other rights.
func (controllers Controllers) As(accounts ...string) Controllers {
	all := make(Controllers, 0, len(controllers))
	for _, build := range controllers {
		all = append(all, func(set *client.Set) interface{ Run(context.Context) } {
			c := &checked{accounts: accounts}
			for _, account := range accounts {
				c.rules = append(c.rules, rulesOf(account)...)
			}
			c.runner = build(set) // it may add reactors, and the check is before them
			set.Kube.(*fake.Clientset).PrependReactor("*", "*", c.react)
			return c
		})
	}
	return all
}

// checked is a controller whose requests are held against the roles of its accounts.
type checked struct {
	runner   interface{ Run(context.Context) }
	accounts []string
	rules    []rbacv1.PolicyRule

	mu        sync.Mutex
	forbidden []error
}

func (c *checked) Run(ctx context.Context) { c.runner.Run(ctx) }

// react answers what none of the accounts may do.
func (c *checked) react(action ktesting.Action) (bool, runtime.Object, error) {
	verb := action.GetVerb()
	if verb == "list" || verb == "watch" {
		return false, nil, nil
	}
	wanted := authorizer.AttributesRecord{
		Verb: verb, APIGroup: action.GetResource().Group, Resource: action.GetResource().Resource,
		Subresource: action.GetSubresource(), Namespace: action.GetNamespace(), ResourceRequest: true,
	}
	if named, ok := action.(interface{ GetName() string }); ok {
		wanted.Name = named.GetName()
	}
	if rbac.RulesAllow(wanted, c.rules...) {
		return false, nil, nil
	}
	err := apierrors.NewForbidden(action.GetResource().GroupResource(), wanted.Name,
		fmt.Errorf("%s may not %s %s/%s", strings.Join(c.accounts, ", "), verb, wanted.Resource, wanted.Subresource))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forbidden = append(c.forbidden, err)
	return true, nil, err
}

// refused is what a controller was not allowed to do.
func refused(runner any) []error {
	c, ok := runner.(*checked)
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forbidden
}

// rulesOf is what the bootstrap policy allows account, in the cluster or in kube-system.
func rulesOf(account string) []rbacv1.PolicyRule {
	name := "system:controller:" + account
	for _, role := range bootstrappolicy.ControllerRoles() {
		if role.Name == name {
			return role.Rules
		}
	}
	for _, role := range bootstrappolicy.NamespaceRoles()["kube-system"] {
		if role.Name == name {
			return role.Rules
		}
	}
	panic("apitest: the bootstrap policy has no role of " + account)
}
