package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// The parts of what has to be known of ClusterNetworkPolicies.
const (
	definitionPart = "definition"
	versionPart    = "version"
	objectsPart    = "objects"
)

// forbiddenPatience is how long the definition may be forbidden until NetworkPolicies are enforced
// without it. An API server that has just started refuses all requests until it knows the roles.
// The table of an earlier process, which may have ClusterNetworkPolicies, must outlive that.
const forbiddenPatience = time.Minute

// troubled notes what keeps policies from being known, or that nothing does. Health says so.
func (c *clusterPolicies) troubled(part string, err error) {
	c.mu.Lock()
	before := c.trouble[part]
	if err == nil {
		delete(c.trouble, part)
	} else {
		c.trouble[part] = err
	}
	c.mu.Unlock()
	switch {
	case err == nil && before == nil, err != nil && before != nil && err.Error() == before.Error():
		return
	case err != nil:
		c.Log.Warn("ClusterNetworkPolicies are not enforced as they should be", "err", err)
	}
	select {
	case <-c.ready:
	default:
		if err != nil {
			c.Health.Fails(err)
		}
	}
	c.signal() // the loop, if it runs, tells health
}

// warnings are what an operator should know. The caller holds mu.
func (c *clusterPolicies) warnings() (all []string) {
	if c == nil {
		return nil
	}
	for _, part := range slices.Sorted(maps.Keys(c.trouble)) {
		all = append(all, "ClusterNetworkPolicies are not enforced as they should be: "+c.trouble[part].Error())
	}
	return all
}

// unknown adds to an error why it is not known which policies there are.
func (c *clusterPolicies) unknown(err error) error {
	if c == nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, part := range slices.Sorted(maps.Keys(c.trouble)) {
		err = fmt.Errorf("%w: %w", err, c.trouble[part])
	}
	return err
}

// tellDefinition has NetworkPolicies enforced also where this process may not look for the
// definition.
func (c *clusterPolicies) tellDefinition(lw *cache.ListWatch) cache.ListerWatcher {
	return told(lw, func(err error) {
		if err == nil {
			c.allowed()
			c.troubled(definitionPart, nil)
			return
		}
		if apierrors.IsForbidden(err) {
			c.forbidden()
		} else {
			c.allowed()
		}
		c.troubled(definitionPart, fmt.Errorf("look for the definition of ClusterNetworkPolicies: %w", err))
	})
}

// tellObjects says why policies are not known.
func (c *clusterPolicies) tellObjects(lw *cache.ListWatch) cache.ListerWatcher {
	return told(lw, func(err error) {
		if err != nil {
			err = fmt.Errorf("list ClusterNetworkPolicies: %w", err)
		}
		c.troubled(objectsPart, err)
	})
}

// told is a source whose answers are told. A watch that fails is followed by a list.
func told(lw *cache.ListWatch, tell func(error)) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := lw.ListWithContext(ctx, o)
			if ctx.Err() == nil {
				tell(err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := lw.WatchWithContext(ctx, o)
			if ctx.Err() == nil && (err == nil || apierrors.IsForbidden(err)) {
				tell(err)
			}
			return w, err
		},
	}
}

// forbidden has policies enforced without ClusterNetworkPolicies if nothing else is heard for a
// while.
func (c *clusterPolicies) forbidden() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forbid != nil {
		return
	}
	var this *time.Timer
	this = time.AfterFunc(forbiddenPatience, func() {
		c.mu.Lock()
		lasts := c.forbid == this
		c.mu.Unlock()
		if lasts {
			c.release()
		}
	})
	c.forbid = this
}

// allowed notes that the definition is not forbidden, or that this does not matter any more.
func (c *clusterPolicies) allowed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forbid != nil {
		c.forbid.Stop()
		c.forbid = nil
	}
}
