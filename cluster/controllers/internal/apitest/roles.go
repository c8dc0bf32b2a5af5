package apitest

import (
	"context"
	"fmt"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

// As has the API refuse these controllers what upstream's bootstrap policy does not let this
// service account of kube-system do. The test fails if anything is refused. Lists and watches are
// not checked: informers read with other rights.
func (controllers Controllers) As(account string) Controllers {
	all := make(Controllers, 0, len(controllers))
	for _, build := range controllers {
		all = append(all, func(set *client.Set) interface{ Run(context.Context) } {
			c := &checked{account: account, rules: rulesOf(account)}
			c.runner = build(set) // it may add reactors, and the check is before them
			set.Kube.(*fake.Clientset).PrependReactor("*", "*", c.react)
			return c
		})
	}
	return all
}

// WithSecond makes a controller that acts as two service accounts of kube-system: build also gets a
// client of account, which is held against that account's role only.
func WithSecond(account string, build func(set *client.Set, second kubernetes.Interface) *frame.Controller) Controllers {
	return Controllers{func(set *client.Set) interface{ Run(context.Context) } {
		c := &checked{account: account, rules: rulesOf(account)}
		first, second := set.Kube.(*fake.Clientset), &fake.Clientset{}
		second.ReactionChain = append([]ktesting.Reactor{&ktesting.SimpleReactor{Verb: "*", Resource: "*", Reaction: c.react}},
			first.ReactionChain...)
		second.WatchReactionChain = first.WatchReactionChain
		c.runner = build(set, second)
		return c
	}}
}

// checked is a controller whose requests are held against the role of an account.
type checked struct {
	runner  interface{ Run(context.Context) }
	account string
	rules   []rbacv1.PolicyRule

	mu        sync.Mutex
	forbidden []error
}

func (c *checked) Run(ctx context.Context) { c.runner.Run(ctx) }

// react answers what the account may not do.
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
		fmt.Errorf("%s may not %s %s/%s", c.account, verb, wanted.Resource, wanted.Subresource))
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
	return append(refused(c.runner), c.forbidden...)
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
