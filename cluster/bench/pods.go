package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func ready(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

// rollout is what a round of deployment has measured, from the creation of the Deployment.
type rollout struct {
	created, bound, up []time.Duration // of the last pod
	down               []time.Duration // of all pods, from the deletion
	cpu                []float64       // of control plane and kubelet, for each pod until all are Ready
}

// deployment measures a Deployment from its creation until all pods are Ready, and from its
// deletion until all are gone.
func (b *bench) deployment(ctx context.Context) error {
	var all rollout
	for round := range b.rounds {
		if err := b.rollOut(ctx, round, &all); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	name := func(what string) string { return fmt.Sprintf("Deployment of %d: %s", b.replicas, what) }
	b.took(name("all created"), median(all.created))
	b.took(name("all bound"), median(all.bound))
	b.took(name("all Ready"), median(all.up))
	b.found(figure{Name: name("CPU time for each pod"), Unit: "ms", Value: median(all.cpu)})
	b.took(name("all gone"), median(all.down))
	return nil
}

// rollOut makes one Deployment, and deletes it.
func (b *bench) rollOut(ctx context.Context, round int, all *rollout) error {
	labels := map[string]string{"app": fmt.Sprintf("deployment-%d", round)}
	replicas, grace := int32(b.replicas), metav1.DeletePropagationBackground
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: labels["app"]},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: b.podSpec()},
		},
	}
	api := b.kube.AppsV1().Deployments(namespace)
	created, bound, alive := map[string]bool{}, map[string]bool{}, map[string]bool{}
	// last notes when the last pod has come so far.
	last := func(of map[string]bool, name string, since time.Time, times *[]time.Duration) {
		if !of[name] {
			of[name] = true
			if len(of) == b.replicas {
				*times = append(*times, time.Since(since))
			}
		}
	}
	var began, deleted time.Time
	var used time.Duration
	var failed error
	err := b.follow(ctx, namespace, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)}, func() error {
		used, began = b.cpu(), time.Now()
		_, err := api.Create(ctx, d, metav1.CreateOptions{})
		return err
	}, func(event watch.EventType, p *v1.Pod) bool {
		if event == watch.Deleted {
			delete(alive, p.Name)
			return len(alive) == 0
		}
		if !deleted.IsZero() {
			return false
		}
		last(created, p.Name, began, &all.created)
		if p.Spec.NodeName != "" {
			last(bound, p.Name, began, &all.bound)
		}
		if ready(p) {
			last(alive, p.Name, began, &all.up)
		}
		if len(alive) == b.replicas {
			all.cpu = append(all.cpu, b.spent(used, b.replicas))
			deleted = time.Now()
			failed = api.Delete(ctx, d.Name, metav1.DeleteOptions{PropagationPolicy: &grace})
		}
		return failed != nil
	})
	if err != nil || failed != nil {
		return firstError(failed, err)
	}
	all.down = append(all.down, time.Since(deleted))
	return nil
}

// firstError returns the first of errs that is one: what follows an error is no news.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// way measures pods one at a time: from the call that creates one until it is seen Ready. What the
// runtime does meanwhile is in its events.
func (b *bench) way(ctx context.Context) error {
	conn, err := grpc.NewClient("unix://"+b.stack.runtime(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := cri.NewRuntimeServiceClient(conn).GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		return err
	}
	if err := b.createWhenPossible(ctx, b.pod(namespace, "warm")); err != nil {
		return err
	}
	var order []string
	times := map[string][]float64{}
	note := func(name string, from, to time.Time) {
		if times[name] == nil {
			order = append(order, name)
		}
		times[name] = append(times[name], float64(to.Sub(from).Microseconds())/1000)
	}
	for i := range 4 * b.rounds {
		p := b.pod(namespace, fmt.Sprintf("way-%d", i))
		var began, answered, bound, seen time.Time
		created := make(chan error, 1)
		err := b.follow(ctx, namespace, metav1.ListOptions{FieldSelector: "metadata.name=" + p.Name}, func() error {
			began = time.Now()
			go func() {
				var err error
				p, err = b.kube.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
				answered = time.Now()
				created <- err
			}()
			return nil
		}, func(_ watch.EventType, p *v1.Pod) bool {
			if p.Spec.NodeName != "" && bound.IsZero() {
				bound = time.Now()
			}
			seen = time.Now()
			return ready(p)
		})
		if err = firstError(err, <-created); err != nil {
			return err
		}
		in, err := runtimeTimes(events, string(p.UID))
		if err != nil {
			return err
		}
		note("a pod's way, in all", began, seen)
		note("… API: create answered", began, answered)
		note("… scheduler: bound", answered, bound)
		if b.name == "coracle" { // others count a pod as created when it has been made
			note("… kubelet: RunPodSandbox called", bound, in.asked)
			note("… CRI: RunPodSandbox", in.asked, in.sandbox)
		}
		note("… from bound until the pod is made", bound, in.sandbox)
		note("… kubelet, CRI: CreateContainer", in.sandbox, in.created)
		note("… CRI: StartContainer", in.created, in.started)
		note("… kubelet, API: seen Ready", in.started, seen)
		if err := b.kube.CoreV1().Pods(namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	for _, name := range order {
		b.found(figure{Name: name, Unit: "ms", Value: median(times[name])})
	}
	return nil
}

// moments are when the runtime was asked for a pod, had made it, had made its container, and had
// started that.
type moments struct{ asked, sandbox, created, started time.Time }

// runtimeTimes reads events until the only container of a pod was started.
func runtimeTimes(events cri.RuntimeService_GetContainerEventsClient, uid string) (m moments, err error) {
	for m.started.IsZero() {
		e, err := events.Recv()
		if err != nil {
			return m, err
		}
		pod := e.GetPodSandboxStatus()
		if pod.GetMetadata().GetUid() != uid {
			continue
		}
		at, ofPod := time.Unix(0, e.GetCreatedAt()), e.GetContainerId() == pod.GetId()
		switch kind := e.GetContainerEventType(); {
		case kind == cri.ContainerEventType_CONTAINER_STARTED_EVENT && ofPod:
			m.asked, m.sandbox = time.Unix(0, pod.GetCreatedAt()), at
		case kind == cri.ContainerEventType_CONTAINER_CREATED_EVENT && !ofPod:
			m.created = at
		case kind == cri.ContainerEventType_CONTAINER_STARTED_EVENT && !ofPod:
			m.started = at
		}
	}
	return m, nil
}
