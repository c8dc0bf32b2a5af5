//go:build nodes && vm

package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

// clockGrace is how long a node may be silent here, and renewals how many renewals of its Lease,
// each ten seconds after the one before, take longer than that.
const (
	clockGrace = 30 * time.Second
	renewals   = 5
)

// TestWrongClock is a node whose clock is an hour off: before it joins, while it runs, and when its
// agent starts.
func TestWrongClock(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), guestLimit*time.Second)
	defer cancel()
	all := cluster(t, 2)
	one := all[0]
	up(t, all, "--node-monitor-grace-period", clockGrace.String())
	startRegistry(t)
	x := across{all: all, kube: client(t, one)}
	g := startGuest(t)

	i := one.Invite(t)
	join := []string{
		"join", i.Server, "--token", i.Token, "--ca-hash", i.CAHash, "--config", "", "--node-name", g.Name, "--runtime-config", guestConfig,
		"--timeout", (2 * patience).String(), "--eviction-hard", "memory.available<0%",
	}
	for off, way := range map[time.Duration]string{time.Hour: "ahead of", -time.Hour: "behind"} {
		g.setClock(t, off)
		g.refusesToJoin(t, way, join)
	}
	g.setClock(t, 0)
	g.Must(t, join...)

	// A clock that is set while the node runs: it stays Ready, and its pod stays as it is.
	template := drawnTo(g.machine, "state")
	template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: g.Name}
	runOnceFrom(guestBin+"/once", guestOnce, &template.Spec)
	before := x.startStateful(ctx, t, template)
	for _, off := range []time.Duration{time.Hour, 0, -time.Hour} {
		g.setClock(t, off)
		x.renews(ctx, t, g, off)
	}
	const behind = "is this machine's clock right?"
	g.says(ctx, t, behind, true)
	g.setClock(t, 0)
	x.renews(ctx, t, g, 0)
	g.says(ctx, t, behind, false)
	g.ranOnce(ctx, t, before.UID)

	// An agent that starts with such a clock. Ahead, no certificate has ended. Behind, the node's
	// does not begin yet, and the node is silent until the clock is right.
	g.setClock(t, time.Hour)
	g.killAgent(t)
	x.renews(ctx, t, g, time.Hour)
	g.setClock(t, -time.Hour)
	g.killAgent(t)
	x.evictsFrom(ctx, t, g)
	x.evicted(ctx, t, before)
	g.says(ctx, t, "correct the clock", true)
	g.ranOnce(ctx, t, before.UID)
	g.setClock(t, 0)
	x.renews(ctx, t, g, 0)
	after := x.replaced(ctx, t, before)
	g.ranOnce(ctx, t, before.UID, after.UID)
	g.Must(t, "leave")
}

// refusesToJoin finds one line about the clock.
func (g *guest) refusesToJoin(t *testing.T, way string, join []string) {
	t.Helper()
	out, said, err := g.Run(join...)
	var about []string
	for line := range strings.Lines(out + said) {
		if strings.Contains(line, "clock") {
			about = append(about, line)
		}
	}
	if err == nil || len(about) != 1 || !strings.Contains(about[0], way+" that of the cluster: have a time service set the clocks of both") ||
		!strings.Contains(about[0], "this machine's clock is 1h0m") && !strings.Contains(about[0], "this machine's clock is 59m") ||
		!strings.Contains(said, "nothing was changed") {
		t.Errorf("with a clock that is %s the cluster's, join says %v\n%s%s", way, err, out, said)
	}
}

// says waits until status in the guest says something, or does not.
func (g *guest) says(ctx context.Context, t *testing.T, what string, want bool) {
	t.Helper()
	testkit.Eventually(ctx, t, fmt.Sprintf("status says %q: %t", what, want), func() (bool, error) {
		out, said, err := g.Run("status")
		// It says what runs, whatever is wrong: an answer of nothing is no answer.
		return out != "" && strings.Contains(out+said, what) == want, fmt.Errorf("%s%s %w", out, said, err)
	})
}

// evictsFrom waits until the node in the guest is unreachable.
func (x *across) evictsFrom(ctx context.Context, t *testing.T, g *guest) {
	t.Helper()
	testkit.Eventually(ctx, t, "the node is unreachable", func() (bool, error) {
		node, err := x.kube.CoreV1().Nodes().Get(ctx, g.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		gone := slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Key == corev1.TaintNodeUnreachable && taint.Effect == corev1.TaintEffectNoExecute
		})
		return gone, fmt.Errorf("it has the taints %v", node.Spec.Taints)
	})
}

// killAgent has the guest's supervisor start its agent again.
func (g *guest) killAgent(t *testing.T) {
	t.Helper()
	g.must(t, "sh", "-c", "kill -9 $(pidof coracle-kube)")
}

// ranOnce waits until the pods with these uids have run in the guest, in this order.
func (g *guest) ranOnce(ctx context.Context, t *testing.T, uids ...types.UID) {
	t.Helper()
	ranOnceAs(ctx, t, func() (string, error) {
		out, said, err := g.exec([]string{"cat", guestOnce + "/log"})
		return out, fmt.Errorf("%s %w", said, err)
	}, uids...)
}

// renews waits until the node in the guest has renewed its Lease often enough by a clock that is
// ahead. From the first of these renewals on, it has to be Ready and without taints.
func (x *across) renews(ctx context.Context, t *testing.T, g *guest, ahead time.Duration) {
	t.Helper()
	seen := map[time.Time]bool{}
	testkit.Eventually(ctx, t, fmt.Sprintf("the node renews its Lease by a clock that is %v ahead", ahead), func() (bool, error) {
		lease, err := x.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, g.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		off := time.Until(lease.Spec.RenewTime.Time) - ahead
		if off.Abs() > time.Minute { // by the clock of before
			return false, fmt.Errorf("it was renewed at %s", lease.Spec.RenewTime)
		}
		node, err := x.kube.CoreV1().Nodes().Get(ctx, g.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		ready := false
		for _, c := range node.Status.Conditions {
			ready = ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}
		if len(seen) > 0 && (!ready || len(node.Spec.Taints) > 0) {
			t.Fatalf("with a clock that is %v ahead, the node is ready: %t, with taints %v", ahead, ready, node.Spec.Taints)
		}
		if ready && len(node.Spec.Taints) == 0 {
			seen[lease.Spec.RenewTime.Time] = true
		}
		return len(seen) == renewals, fmt.Errorf("it has renewed it %d times", len(seen))
	})
	t.Logf("the node is Ready with a clock that is %v ahead", ahead)
}
