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
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
}

// deployment measures a Deployment from its creation until all pods are Ready, and from its
// deletion until all are gone.
func (b *bench) deployment(ctx context.Context) error {
	var up, down []time.Duration
	for round := range b.rounds {
		labels := map[string]string{"app": fmt.Sprintf("deployment-%d", round)}
		replicas, grace := int32(b.replicas), metav1.DeletePropagationBackground
		d := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: labels["app"]},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: b.podSpec()},
			},
		}
		api, alive := b.kube.AppsV1().Deployments(namespace), map[string]bool{}
		var began, deleted time.Time
		var failed error
		err := b.follow(ctx, namespace, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)}, func() error {
			began = time.Now()
			_, err := api.Create(ctx, d, metav1.CreateOptions{})
			return err
		}, func(event watch.EventType, p *v1.Pod) bool {
			switch {
			case event == watch.Deleted:
				delete(alive, p.Name)
				return len(alive) == 0
			case ready(p) && deleted.IsZero():
				alive[p.Name] = true
				if len(alive) == b.replicas {
					up = append(up, time.Since(began))
					deleted = time.Now()
					failed = api.Delete(ctx, d.Name, metav1.DeleteOptions{PropagationPolicy: &grace})
				}
			}
			return failed != nil
		})
		if err != nil || failed != nil {
			return fmt.Errorf("round %d: %w", round, cmpErr(failed, err))
		}
		down = append(down, time.Since(deleted))
	}
	b.took(fmt.Sprintf("Deployment of %d: all Ready", b.replicas), median(up))
	b.took(fmt.Sprintf("Deployment of %d: all gone", b.replicas), median(down))
	return nil
}

// cmpErr returns the first error.
func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// way measures pods one at a time: from the call that creates one until it is seen Ready.
func (b *bench) way(ctx context.Context) error {
	conn, err := grpc.NewClient("unix://"+b.stack.runtime(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	runtime := cri.NewRuntimeServiceClient(conn)
	if err := b.createWhenPossible(ctx, b.pod(namespace, "warm")); err != nil {
		return err
	}
	var order []string
	times := map[string][]float64{}
	note := func(name string, d time.Duration) {
		if times[name] == nil {
			order = append(order, name)
		}
		times[name] = append(times[name], float64(d.Microseconds())/1000)
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
		if err = cmpErr(err, <-created); err != nil {
			return err
		}
		asked, creating, started, err := runtimeTimes(ctx, runtime, string(p.UID))
		if err != nil {
			return err
		}
		note("a pod's way, in all", seen.Sub(began))
		note("… API: create answered", answered.Sub(began))
		note("… scheduler: bound", bound.Sub(answered))
		if b.name == "coracle" { // others count a pod as created when it has been made
			note("… kubelet: RunPodSandbox called", asked.Sub(bound))
			note("… CRI: pod made (and kubelet, until it calls CreateContainer)", creating.Sub(asked))
			note("… CRI: container created and started", started.Sub(creating))
		} else {
			note("… kubelet and CRI: container started", started.Sub(bound))
		}
		note("… kubelet and API: seen Ready", seen.Sub(started))
		if err := b.kube.CoreV1().Pods(namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	for _, name := range order {
		b.found(figure{Name: name, Unit: "ms", Value: median(times[name])})
	}
	return nil
}

// runtimeTimes are what the runtime says of the only container of a pod: when it was asked for the
// pod and for the container, and when that ran.
func runtimeTimes(ctx context.Context, runtime cri.RuntimeServiceClient, uid string) (asked, creating, started time.Time, err error) {
	labels := map[string]string{"io.kubernetes.pod.uid": uid}
	pods, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: labels}})
	if err != nil {
		return
	}
	ctrs, err := runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: labels}})
	if err != nil {
		return
	}
	if len(pods.GetItems()) != 1 || len(ctrs.GetContainers()) != 1 {
		err = fmt.Errorf("the runtime has %d pods and %d containers of %s", len(pods.GetItems()), len(ctrs.GetContainers()), uid)
		return
	}
	s, err := runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: ctrs.GetContainers()[0].GetId()})
	at := func(nanos int64) time.Time { return time.Unix(0, nanos) }
	return at(pods.GetItems()[0].GetCreatedAt()), at(s.GetStatus().GetCreatedAt()), at(s.GetStatus().GetStartedAt()), err
}
