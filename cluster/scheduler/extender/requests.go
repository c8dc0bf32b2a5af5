package extender

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// plugin is whose rejections an extender's are.
const plugin = "Extender"

// What is shown of an extender's reasons: users read them in events and conditions.
const (
	maxReason  = 256
	maxReasons = 8
)

// args is what an extender is asked: all of the nodes, or their names if it knows them.
func (e *Extender) args(pod *v1.Pod, nodes []*framework.NodeInfo) *extenderv1.ExtenderArgs {
	args := &extenderv1.ExtenderArgs{Pod: pod}
	if e.config.NodeCacheCapable {
		names := make([]string, len(nodes))
		for i, n := range nodes {
			names[i] = n.Node().Name
		}
		args.NodeNames = &names
		return args
	}
	args.Nodes = &v1.NodeList{Items: make([]v1.Node, len(nodes))}
	for i, n := range nodes {
		args.Nodes.Items[i] = *n.Node()
	}
	return args
}

// Filter returns those of nodes that the extender leaves, and gives rejected why not the others.
func (e *Extender) Filter(ctx context.Context, pod *v1.Pod, nodes []*framework.NodeInfo,
	rejected func(*framework.NodeInfo, *framework.Status),
) ([]*framework.NodeInfo, error) {
	var result filtered
	result.Nodes.Items.most, result.NodeNames.most = len(nodes), len(nodes)
	if err := e.ask(ctx, e.config.FilterVerb, e.args(pod, nodes), &result); err != nil {
		return nil, err
	}
	if result.Error != "" {
		return nil, e.wrong(errors.New(shorten(result.Error)))
	}
	left := make(map[string]bool)
	if e.config.NodeCacheCapable && result.NodeNames.items != nil {
		for _, name := range result.NodeNames.items {
			left[name] = true
		}
	} else {
		for _, n := range result.Nodes.Items.items {
			left[n.Metadata.Name] = true
		}
	}
	var feasible []*framework.NodeInfo
	statuses := statuses{made: make(map[string]*framework.Status)}
	for _, n := range nodes {
		name := n.Node().Name
		if left[name] {
			delete(left, name)
			feasible = append(feasible, n)
			continue
		}
		if why, ok := result.FailedAndUnresolvableNodes[name]; ok {
			rejected(n, statuses.of(framework.Unresolvable, why))
		} else {
			rejected(n, statuses.of(framework.Unschedulable, result.FailedNodes[name]))
		}
	}
	for name := range left {
		return nil, e.wrong(fmt.Errorf("its answer has node %q, about which it was not asked", shorten(name)))
	}
	return feasible, nil
}

func (e *Extender) wrong(err error) error { return fmt.Errorf("extender %s: %w", e.Name(), err) }

// statuses are one extender's rejections of nodes, with few different reasons.
type statuses struct{ made map[string]*framework.Status }

func (s *statuses) of(code framework.Code, why string) *framework.Status {
	if why == "" {
		why = "node(s) were turned down by an extender"
	}
	key := fmt.Sprint(code, shorten(why))
	if made := s.made[key]; made != nil {
		return made
	}
	if len(s.made) >= maxReasons {
		why = "node(s) were turned down by an extender for other reasons"
		if key = fmt.Sprint(code, why); s.made[key] != nil {
			return s.made[key]
		}
	}
	s.made[key] = framework.NewStatus(code, plugin, shorten(why))
	return s.made[key]
}

func shorten(text string) string {
	if len(text) <= maxReason {
		return text
	}
	return text[:maxReason-4] + " ..."
}

// Score adds the extender's scores of nodes, 0 to 10 each, to scores, which are at most 100.
func (e *Extender) Score(ctx context.Context, pod *v1.Pod, nodes []*framework.NodeInfo) ([]int64, error) {
	result := list[extenderv1.HostPriority]{most: len(nodes)}
	if err := e.ask(ctx, e.config.PrioritizeVerb, e.args(pod, nodes), &result); err != nil {
		return nil, err
	}
	at := make(map[string]int, len(nodes))
	for i, n := range nodes {
		at[n.Node().Name] = i
	}
	scores := make([]int64, len(nodes))
	for _, r := range result.items {
		i, ok := at[r.Host]
		switch {
		case !ok:
			return nil, e.wrong(fmt.Errorf("its answer has node %q, about which it was not asked", shorten(r.Host)))
		case r.Score < extenderv1.MinExtenderPriority || r.Score > extenderv1.MaxExtenderPriority:
			return nil, e.wrong(fmt.Errorf("its score of node %s is %d, not from %d to %d", r.Host, r.Score, extenderv1.MinExtenderPriority,
				extenderv1.MaxExtenderPriority))
		}
		scores[i] = r.Score * e.config.Weight * (framework.MaxScore / extenderv1.MaxExtenderPriority)
	}
	return scores, nil
}

// Bind has the extender bind pod to node.
func (e *Extender) Bind(ctx context.Context, pod *v1.Pod, node string) error {
	var result extenderv1.ExtenderBindingResult
	args := &extenderv1.ExtenderBindingArgs{PodName: pod.Name, PodNamespace: pod.Namespace, PodUID: pod.UID, Node: node}
	if err := e.ask(ctx, e.config.BindVerb, args, &result); err != nil {
		return err
	}
	if result.Error != "" {
		return e.wrong(errors.New(shorten(result.Error)))
	}
	return nil
}

// Preempt returns which pods the extender wants to be removed for pod: on some of the nodes in
// victims, and there only pods of lower priority than pod has.
func (e *Extender) Preempt(ctx context.Context, pod *v1.Pod, nodes *framework.Snapshot,
	victims map[string]framework.Victims,
) (map[string]framework.Victims, error) {
	var result extenderv1.ExtenderPreemptionResult
	if err := e.ask(ctx, e.config.PreemptVerb, e.preemption(pod, victims), &result); err != nil {
		return nil, err
	}
	chosen := make(map[string]framework.Victims)
	for name, meta := range result.NodeNameToMetaVictims {
		node := nodes.Get(name)
		if _, asked := victims[name]; !asked || node == nil {
			return nil, e.wrong(fmt.Errorf("its answer has node %q, about which it was not asked", shorten(name)))
		}
		if meta == nil || len(meta.Pods) == 0 {
			if e.Ignorable() {
				continue
			}
			return nil, e.wrong(fmt.Errorf("its answer has no pod to be removed from node %s", name))
		}
		if meta.NumPDBViolations < 0 {
			return nil, e.wrong(fmt.Errorf("its answer has %d violations of disruption budgets on node %s", meta.NumPDBViolations, name))
		}
		some := framework.Victims{Violations: int(meta.NumPDBViolations)}
		for _, m := range meta.Pods {
			found := victim(node, m)
			switch {
			case found == nil:
				return nil, e.wrong(fmt.Errorf("its answer has a pod that is not on node %s", name))
			case slices.Contains(some.Pods, found):
				return nil, e.wrong(fmt.Errorf("its answer has pod %s/%s twice", found.Namespace, found.Name))
			case corev1helpers.PodPriority(found) >= corev1helpers.PodPriority(pod):
				return nil, e.wrong(fmt.Errorf("it wants pod %s/%s to be removed, whose priority is not lower", found.Namespace, found.Name))
			}
			some.Pods = append(some.Pods, found)
		}
		chosen[name] = some
	}
	return chosen, nil
}

func victim(node *framework.NodeInfo, m *extenderv1.MetaPod) *v1.Pod {
	for _, p := range node.Pods {
		if m != nil && string(p.Pod().UID) == m.UID {
			return p.Pod()
		}
	}
	return nil
}

func (e *Extender) preemption(pod *v1.Pod, victims map[string]framework.Victims) *extenderv1.ExtenderPreemptionArgs {
	args := &extenderv1.ExtenderPreemptionArgs{Pod: pod}
	if !e.config.NodeCacheCapable {
		args.NodeNameToVictims = make(map[string]*extenderv1.Victims, len(victims))
		for name, v := range victims {
			args.NodeNameToVictims[name] = &extenderv1.Victims{Pods: v.Pods, NumPDBViolations: int64(v.Violations)}
		}
		return args
	}
	args.NodeNameToMetaVictims = make(map[string]*extenderv1.MetaVictims, len(victims))
	for name, v := range victims {
		meta := &extenderv1.MetaVictims{NumPDBViolations: int64(v.Violations)}
		for _, p := range v.Pods {
			meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
		}
		args.NodeNameToMetaVictims[name] = meta
	}
	return args
}
