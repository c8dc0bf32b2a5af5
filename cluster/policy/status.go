package policy

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/coracle-project/coracle/cluster/policy/compile"
)

// conditionPrefix and a node's name are the type of the condition in a ClusterNetworkPolicy's
// status that says whether the node enforces it. Nodes may differ: a policy that is too large is so
// for some pods only.
const conditionPrefix = "Enforced-"

// enforced is the reason of a condition that is true; others have those of a compile.Problem.
const enforced = "Enforced"

// mostTellers is how many nodes say of a policy that they enforce it: the first by name. Other
// nodes say so only if they do not. Each condition is written to etcd with all others, and sent to
// every node.
const mostTellers = 32

// statusPatience bounds one write.
const statusPatience = 30 * time.Second

// statuses are conditions that are to be written, when what they say is in force.
type statuses struct {
	wake chan struct{}

	mu      sync.Mutex
	waiting map[string]compile.Review // until the next table is in force
	ready   map[string]compile.Review
}

func newStatuses() statuses {
	return statuses{wake: make(chan struct{}, 1), waiting: map[string]compile.Review{}, ready: map[string]compile.Review{}}
}

// add keeps reviews.
func (s *statuses) add(all []compile.Review) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range all {
		s.waiting[r.Policy.Name] = r
	}
}

// inForce has all reviews written.
func (s *statuses) inForce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, r := range s.waiting {
		s.ready[name] = r
	}
	clear(s.waiting)
	if len(s.ready) > 0 {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// next returns a review that is to be written.
func (s *statuses) next() (r compile.Review, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, r := range s.ready {
		delete(s.ready, name)
		return r, true
	}
	return r, false
}

// again keeps a review that could not be written, unless there is a newer one.
func (s *statuses) again(r compile.Review) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, newer := s.ready[r.Policy.Name]; !newer {
		s.ready[r.Policy.Name] = r
	}
}

// writeStatuses writes the status of policies until ctx ends.
func (c *clusterPolicies) writeStatuses(ctx context.Context) {
	if c.nodes != nil && !cache.WaitFor(ctx, "nodes of network policies", c.nodes.synced) {
		return
	}
	pause := firstPause
	for {
		r, ok := c.status.next()
		if !ok {
			pause = firstPause
			select {
			case <-c.status.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		err := c.writeStatus(ctx, r)
		if !c.passing(r.Policy.Name, err) {
			continue
		}
		c.Log.Warn("write the status of a ClusterNetworkPolicy", "policy", r.Policy.Name, "err", err, "again", pause)
		c.status.again(r)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, longestWait)
	}
}

// passing says whether an error of a write may be over when it is tried again. One that lasts is
// logged.
func (c *clusterPolicies) passing(policy string, err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonNotFound, metav1.StatusReasonConflict: // it is gone
		return false
	case metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest:
		c.Log.Warn("write the status of a ClusterNetworkPolicy", "policy", policy, "err", err)
		return false
	}
	return err != nil
}

func (c *clusterPolicies) writeStatus(ctx context.Context, r compile.Review) error {
	condition := conditionOf(r, c.NodeName)
	has := meta.FindStatusCondition(r.Policy.Status.Conditions, condition.Type)
	if condition.Status == metav1.ConditionTrue && c.nodes != nil && !c.nodes.tells() {
		if has == nil {
			return nil
		}
		return c.applyConditions(ctx, r.Policy, c.NodeName)
	}
	if has != nil {
		if has.Status == condition.Status {
			condition.LastTransitionTime = has.LastTransitionTime
		}
		if *has == condition {
			return nil
		}
	}
	return c.applyConditions(ctx, r.Policy, c.NodeName, condition)
}

// applyConditions has a policy's status have these conditions of a node, and no others of that
// node.
func (c *clusterPolicies) applyConditions(ctx context.Context, p *policyv1alpha2.ClusterNetworkPolicy, node string,
	all ...metav1.Condition,
) error {
	object := map[string]any{
		"apiVersion": clusterVersion.String(), "kind": clusterKind.Kind,
		"metadata": map[string]any{"name": p.Name, "uid": p.UID},
	}
	if len(all) > 0 {
		object["status"] = map[string]any{"conditions": all}
	}
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	return c.write(ctx, p.Name, fieldManager(node), body)
}

// conditionOf says whether a policy is enforced by a node as it says.
func conditionOf(r compile.Review, node string) metav1.Condition {
	c := metav1.Condition{
		Type: conditionPrefix + node, Status: metav1.ConditionTrue, Reason: enforced, Message: "the policy is in force for the node's pods",
		ObservedGeneration: r.Policy.Generation, LastTransitionTime: metav1.Now().Rfc3339Copy(),
	}
	if len(r.Problems) > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, r.Problems[0].Reason
		var all []string
		for _, p := range r.Problems {
			all = append(all, p.Message)
		}
		c.Message = strings.Join(all, "; ")
	}
	const most = 32768 // the API's limit
	c.Message = c.Message[:min(len(c.Message), most)]
	return c
}

// fieldManager is who a node's condition belongs to. The API allows it 128 bytes, and 253 a node.
func fieldManager(node string) string {
	const most = 128
	name := "coracle-policy-" + node
	if len(name) <= most {
		return name
	}
	sum := fmt.Sprintf("-%x", sha256.Sum256([]byte(node)))[:17]
	return name[:most-len(sum)] + sum
}

// applyStatus writes a part of a policy's status; others may write other conditions.
func applyStatus(ctx context.Context, client *rest.RESTClient, name, manager string, body []byte) error {
	err := client.Patch(types.ApplyPatchType).Resource(clusterResource).Name(name).SubResource("status").
		Param("fieldManager", manager).Param("force", "true").Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("status of ClusterNetworkPolicy %s: %w", name, err)
	}
	return nil
}
