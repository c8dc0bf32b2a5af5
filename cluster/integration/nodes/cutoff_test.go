//go:build nodes

package nodes

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

// drawnTo is a pod that rather runs on one node, and leaves it soon when that is unreachable.
func drawnTo(m *machine, set string) corev1.PodTemplateSpec {
	soon := int64(5)
	p := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"set": set}}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: image}},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100,
				Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{m.Name}},
				}},
			}},
		}},
	}}
	for _, key := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &soon,
		})
	}
	return p
}

// stateful starts the pod state-0 of a StatefulSet on a node, and returns it with the directory of
// what it does once.
func (x *across) stateful(ctx context.Context, t *testing.T, on *machine) (pod *corev1.Pod, once string) {
	t.Helper()
	template := drawnTo(on, "state")
	once = runOnce(t, &template.Spec)
	pod = x.startStateful(ctx, t, template)
	if pod.Spec.NodeName != on.Name {
		t.Fatalf("state-0 is on node %s", pod.Spec.NodeName)
	}
	ranOnce(ctx, t, once, pod.UID)
	return pod, once
}

// startStateful starts the pod state-0 of a StatefulSet, and returns it when it runs.
func (x *across) startStateful(ctx context.Context, t *testing.T, template corev1.PodTemplateSpec) *corev1.Pod {
	t.Helper()
	_, err := x.kube.AppsV1().StatefulSets("default").Create(ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "state"},
		Spec:       appsv1.StatefulSetSpec{Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return awaitPod(ctx, t, x.kube, "state-0")
}

// runOnce has a pod's containers be once, in a directory that it returns.
func runOnce(t *testing.T, pod *corev1.PodSpec) (dir string) {
	t.Helper()
	program, err := os.Executable() // static, so that it runs over any image
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil { // the image may have a user
		t.Fatal(err)
	}
	runOnceFrom(program, dir, pod)
	return dir
}

// runOnceFrom is runOnce with the paths of this program and a directory on the pod's node.
func runOnceFrom(program, dir string, pod *corev1.PodSpec) {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	for name, path := range map[string]string{"program": program, "once": dir} {
		pod.Volumes = append(pod.Volumes, corev1.Volume{
			Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}},
		})
	}
	c := &pod.Containers[0]
	c.Command = []string{"/program"}
	c.Env = append(c.Env, corev1.EnvVar{Name: onceVar, Value: "/once"}, field("POD_UID", "metadata.uid"), field("NODE", "spec.nodeName"))
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "program", MountPath: "/program", ReadOnly: true},
		corev1.VolumeMount{Name: "once", MountPath: "/once"})
}

// ranOnce waits until the pods with these uids have run, in this order. No two may have run at a
// time.
func ranOnce(ctx context.Context, t *testing.T, dir string, uids ...types.UID) {
	t.Helper()
	ranOnceAs(ctx, t, func() (string, error) {
		log, err := os.ReadFile(filepath.Join(dir, "log"))
		return string(log), err
	}, uids...)
}

// ranOnceAs is ranOnce by a log that is elsewhere.
func ranOnceAs(ctx context.Context, t *testing.T, read func() (string, error), uids ...types.UID) {
	t.Helper()
	testkit.Eventually(ctx, t, fmt.Sprintf("pods %s ran", uids), func() (bool, error) {
		log, err := read()
		if strings.Contains(log, "twice") {
			t.Fatalf("it ran twice at a time:\n%s", log)
		}
		var ran []types.UID
		for line := range strings.Lines(log) {
			if words := strings.Fields(line); len(words) > 1 && words[0] == "runs" {
				ran = append(ran, types.UID(words[1]))
			}
		}
		return slices.Equal(ran, uids), fmt.Errorf("%w\n%s", err, log)
	})
}

// Credentials that are shorter than a node is away: its lease, its certificates, and the token that
// it could join with again. As upstream's kubelet, the node does not get in with what has ended,
// and its pod of a StatefulSet is not replaced until an administrator has taken the node out.
func TestCutOffForLongerThanCredentials(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	all := cluster(t, 3)
	one, away := all[0], all[2]
	up(t, all, "--node-monitor-grace-period", "20s", "--cluster-signing-duration", "2m")
	startRegistry(t)
	x := across{all: all, kube: client(t, one)}
	before, once := x.stateful(ctx, t, away)
	first := away.certificateEnd(t)
	testkit.Eventually(ctx, t, "the node renews its certificate", func() (bool, error) {
		return away.certificateEnd(t).After(first), nil
	})
	token := one.Invite(t, "--ttl", "1m")

	heal := lossy(t, away, 100)
	began, ends := time.Now(), away.certificateEnd(t)
	x.tainted(ctx, t, away, true)
	if took := time.Since(began); took < 10*time.Second || took > 45*time.Second { // the last sign of life may be 10 s old
		t.Errorf("the node is unreachable after %v, with a grace period of 20 s", took)
	}
	ending := func(when string) {
		t.Helper()
		x.evicted(ctx, t, before)
		if on := x.running(t, "state-0"); !slices.Equal(on, []string{away.Name}) {
			t.Errorf("%s, state-0 runs on %v", when, on)
		}
	}
	ending("while its node is cut off")
	<-time.After(max(time.Until(ends)+time.Second, time.Until(began.Add(time.Minute))))
	ending("when the node's certificate has ended")

	// The node is back, and no one knows it.
	heal()
	testkit.Eventually(ctx, t, "status tells that the certificate has ended", func() (bool, error) {
		out, said, err := away.Run("status")
		return strings.Contains(out+said, "it expired on"), fmt.Errorf("%s%s %w", out, said, err)
	})
	x.tainted(ctx, t, away, true)
	ending("when the link is back")
	away.Must(t, "leave", "--force", "--timeout", "10s")
	lock, err := os.Open(filepath.Join(once, "lock"))
	if err == nil {
		err = errors.Join(unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB), lock.Close())
	}
	if err != nil {
		t.Errorf("after its node has left, state-0 has not ended: %v", err)
	}
	one.Must(t, "node", "remove", away.Name)
	after := x.replaced(ctx, t, before)
	if after.Spec.NodeName == away.Name {
		t.Errorf("state-0 is on node %s, which was removed", away.Name)
	}
	ranOnce(ctx, t, once, before.UID, after.UID)

	// It joins again, with a token that is good.
	join := func(token string) []string {
		return append([]string{"join", "https://" + firstIP + ":6443", "--token", token, "--ca-hash", one.Invite(t).CAHash}, away.flags()...)
	}
	id, _, _ := strings.Cut(token.Token, ".")
	away.Refused(t, "does not know token "+id+": it was deleted or has expired", join(token.Token)...)
	away.Must(t, join(one.Invite(t).Token)...)
	if end := away.certificateEnd(t); !end.After(ends) {
		t.Errorf("its certificate ends at %v", end)
	}
	x.tainted(ctx, t, away, false)
	ranOnce(ctx, t, once, before.UID, after.UID)
}

// evicted waits until a pod of a node that is unreachable is to end, and finds that it had the time
// that it tolerates: 5 s. The API has both moments in whole seconds.
func (x *across) evicted(ctx context.Context, t *testing.T, pod *corev1.Pod) {
	t.Helper()
	var p *corev1.Pod
	testkit.Eventually(ctx, t, pod.Name+" is to end", func() (_ bool, err error) {
		p, err = x.kube.CoreV1().Pods("default").Get(ctx, pod.Name, metav1.GetOptions{})
		return err == nil && p.UID == pod.UID && p.DeletionTimestamp != nil, fmt.Errorf("%v, %w", p, err)
	})
	n, err := x.kube.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asked := p.DeletionTimestamp.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
	for _, taint := range n.Spec.Taints {
		if taint.Key != corev1.TaintNodeUnreachable || taint.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if after := asked.Sub(taint.TimeAdded.Time); after < 4*time.Second || after > 15*time.Second {
			t.Errorf("%s is to end %v after its node was tainted, and tolerates that for 5 s", pod.Name, after)
		}
		return
	}
	t.Errorf("node %s has the taints %v", n.Name, n.Spec.Taints)
}

// replaced waits for another pod of the name that runs.
func (x *across) replaced(ctx context.Context, t *testing.T, before *corev1.Pod) (after *corev1.Pod) {
	t.Helper()
	testkit.Eventually(ctx, t, before.Name+" is replaced", func() (_ bool, err error) {
		after, err = x.kube.CoreV1().Pods("default").Get(ctx, before.Name, metav1.GetOptions{})
		return err == nil && after.UID != before.UID && after.Status.Phase == corev1.PodRunning, err
	})
	return after
}

// certificateEnd is when the node's client certificate ends.
func (m *machine) certificateEnd(t *testing.T) time.Time {
	t.Helper()
	file := filepath.Join(m.Root, "kube", "agent", "client.pem")
	pair, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf.NotAfter
}
