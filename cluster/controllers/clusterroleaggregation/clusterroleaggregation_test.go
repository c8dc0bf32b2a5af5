package clusterroleaggregation

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

func rule(verb string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{""}, Resources: []string{"things"}}
}

func TestRulesAreThoseOfTheSelected(t *testing.T) {
	ctx := context.Background()
	var server *apitest.Server
	// apitest knows no apply; a server replaces the rules, which is all that is applied.
	apply := func(action ktesting.Action) (bool, runtime.Object, error) {
		p := action.(ktesting.PatchActionImpl)
		var body rbacv1.ClusterRole
		if err := json.Unmarshal(p.Patch, &body); err != nil {
			return true, nil, err
		}
		role, err := server.Kube.RbacV1().ClusterRoles().Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return true, nil, err
		}
		role.Rules = body.Rules
		role, err = server.Kube.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
		return true, role, err
	}
	apitest.Ours(func(set *client.Set) *frame.Controller {
		set.Kube.(*fake.Clientset).PrependReactor("patch", "clusterroles", apply)
		return New(set)
	}).As("clusterrole-aggregation-controller").Run(t, func(t *testing.T, s *apitest.Server) {
		server = s
		roles := s.Kube.RbacV1().ClusterRoles()
		make := func(name, label string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
			role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "true"}}, Rules: rules}
			if strings.HasPrefix(name, "all-") {
				role.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
					{MatchLabels: map[string]string{"to-" + name: "true"}}, {MatchLabels: map[string]string{"to-any": "true"}},
				}}
			}
			role, err := roles.Create(ctx, role, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			s.Settle()
			return role
		}
		want := func(name, verbs string) {
			t.Helper()
			role, err := roles.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range role.Rules {
				got = append(got, r.Verbs...)
			}
			if strings.Join(got, " ") != verbs {
				t.Errorf("%s has %v, want %s", name, got, verbs)
			}
		}
		make("all-view", "to-all-edit", rule("stale")) // and edit includes view
		want("all-view", "")
		make("all-edit", "x")
		make("b", "to-all-view", rule("get"), rule("list"))
		make("a", "to-all-edit", rule("list"), rule("update"))
		make("z", "to-any", rule("watch"))
		want("all-view", "get list watch")
		want("all-edit", "list update get watch")
		if err := roles.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Settle()
		want("all-view", "watch")
		want("all-edit", "list update watch")
	})
}
