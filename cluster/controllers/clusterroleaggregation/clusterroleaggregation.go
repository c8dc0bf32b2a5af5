// Package clusterroleaggregation keeps the rules of ClusterRoles with an aggregationRule equal to
// those of the ClusterRoles that it selects, so that "admin", "edit" and "view" know of what
// others add to the API.
package clusterroleaggregation

import (
	"cmp"
	"context"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	applyrbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

// fieldManager is the name under which the rules are applied, as upstream's.
const fieldManager = "clusterrole-aggregation-controller"

type aggregator struct {
	set   *client.Set
	roles rbaclisters.ClusterRoleLister
}

// New returns the controller; its keys are the ClusterRoles that aggregate. Every change of any
// ClusterRole wakes them all: who is selected can depend on it.
func New(set *client.Set) *frame.Controller {
	roles := set.Informers.Rbac().V1().ClusterRoles()
	c := &aggregator{set: set, roles: roles.Lister()}
	f := frame.New("clusterrole-aggregation", 5, set.Logger(), c.sync)
	f.Watch(roles.Informer(), c.aggregating)
	return f
}

func (c *aggregator) aggregating(any) (keys []string) {
	roles, _ := c.roles.List(labels.Everything())
	for _, role := range roles {
		if role.AggregationRule != nil {
			keys = append(keys, role.Name)
		}
	}
	return keys
}

func (c *aggregator) sync(ctx context.Context, name string) error {
	role, err := c.roles.Get(name)
	if apierrors.IsNotFound(err) || err == nil && role.AggregationRule == nil {
		return nil
	}
	if err != nil {
		return err
	}
	rules := []rbacv1.PolicyRule{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return err
		}
		selected, err := c.roles.List(selector)
		if err != nil {
			return err
		}
		slices.SortFunc(selected, func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
		for _, other := range selected {
			if other.Name == name {
				continue
			}
			for _, rule := range other.Rules {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	if equality.Semantic.DeepEqual(rules, role.Rules) {
		return nil
	}
	apply := applyrbacv1.ClusterRole(name)
	for _, rule := range rules {
		apply.WithRules(&applyrbacv1.PolicyRuleApplyConfiguration{
			Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources,
			ResourceNames: rule.ResourceNames, NonResourceURLs: rule.NonResourceURLs,
		})
	}
	_, err = c.set.Kube.RbacV1().ClusterRoles().Apply(ctx, apply, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	return err
}
