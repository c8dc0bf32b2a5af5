package main

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	coordv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// clients is how many calls are under way at a time.
const clients = 20

// each calls f for 0 to n-1, from several goroutines.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	var next atomic.Int64
	work, ctx := errgroup.WithContext(ctx)
	for range clients {
		work.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return work.Wait()
}

func (b *bench) create(ctx context.Context, p *v1.Pod) error {
	_, err := b.kube.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// removeAll removes all pods of this namespace at once, and waits until they are gone.
func (b *bench) removeAll(ctx context.Context) error {
	pods, now := b.kube.CoreV1().Pods(namespace), int64(0)
	began := time.Now()
	for {
		err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		if err == nil {
			break
		}
		// The API server ends a call after a minute. What is deleted by then stays deleted.
		if !apierrors.IsTimeout(err) || time.Since(began) > b.long(b.pods) {
			return err
		}
	}
	return b.until(ctx, func(ctx context.Context) (bool, error) {
		left, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(left.Items) == 0, err
	})
}

// cpu is what control plane and kubelet have used; unlike time, it hardly depends on who else uses
// the machine.
func (b *bench) cpu() time.Duration {
	used, _ := usage(b.stack.programs())
	return used
}

// spent is the CPU time since cpu returned before, in milliseconds for each of n.
func (b *bench) spent(before time.Duration, n int) float64 {
	return 1000 * (b.cpu() - before).Seconds() / float64(n)
}

// createRate creates pods that no scheduler cares for.
func (b *bench) createRate(ctx context.Context) error {
	warm := b.pod(namespace, "warm-creates")
	warm.Spec.SchedulerName = "none"
	if err := b.createWhenPossible(ctx, warm); err != nil {
		return err
	}
	var rates, costs []float64
	for range min(b.rounds, 3) {
		began, used := time.Now(), b.cpu()
		err := each(ctx, b.creates, func(ctx context.Context, i int) error {
			p := b.pod(namespace, fmt.Sprintf("create-%d", i))
			p.Spec.SchedulerName = "none"
			return b.create(ctx, p)
		})
		rates = append(rates, float64(b.creates)/time.Since(began).Seconds())
		costs = append(costs, b.spent(used, b.creates))
		if err := firstError(err, b.removeAll(ctx)); err != nil {
			return err
		}
	}
	b.found(figure{Name: "API: pods created", Unit: "1/s", Value: median(rates), More: true})
	b.found(figure{Name: "… CPU time for each", Unit: "ms", Value: median(costs)})
	return nil
}

// simulated schedules many pods onto nodes that are objects only.
func (b *bench) simulated(ctx context.Context) error {
	cordon := []byte(`{"spec":{"unschedulable":true}}`)
	if _, err := b.kube.CoreV1().Nodes().Patch(ctx, nodeName, types.MergePatchType, cordon, metav1.PatchOptions{}); err != nil {
		return err
	}
	peak := sync.OnceValue(b.watchMemory())
	defer func() { b.peakMemory = peak() }()
	fleet := &fleet{bench: b, leases: make([]atomic.Pointer[coordv1.Lease], b.nodes)}
	beating, stop := context.WithCancel(ctx)
	defer stop()
	go fleet.beat(beating)
	if err := fleet.joinAll(ctx, beating); err != nil {
		return err
	}
	before, err := b.countEvents(ctx)
	if err != nil {
		return err
	}
	var created time.Duration
	used := b.cpu()
	took, err := b.fill(ctx, func() error {
		began := time.Now()
		err := b.backlog(ctx)
		created = time.Since(began)
		return err
	})
	if err != nil {
		return err
	}
	late, missing, err := b.awaitEvents(ctx, before+b.pods)
	if err != nil {
		return err
	}
	b.found(figure{
		Name: fmt.Sprintf("%d pods onto %d nodes", b.pods, b.nodes), Unit: "pods/s", Value: float64(b.pods) / took.all.Seconds(),
		More: true,
	})
	b.found(figure{
		Name: "… until their events are written, too", Unit: "pods/s", Value: float64(b.pods) / (took.all + late).Seconds(), More: true,
	})
	b.found(figure{Name: "… events that were not written", Unit: "1", Value: float64(missing)})
	b.found(figure{Name: "… nodes that were not ready meanwhile", Unit: "1", Value: float64(fleet.silent.Load())})
	b.found(figure{Name: "… of which the creations alone", Unit: "pods/s", Value: float64(b.pods) / created.Seconds(), More: true})
	b.found(figure{Name: "… CPU time for each pod", Unit: "ms", Value: b.spent(used, b.pods)})
	if b.asked("reads") { // the last phase: so many pods take minutes to remove
		b.peakMemory = peak()
		return b.reads(ctx)
	}
	if err := b.removeAll(ctx); err != nil {
		return err
	}
	if u, ok := b.stack.(*upstream); ok {
		return u.alone(ctx, b)
	}
	return nil
}

// countEvents is how many events there are of pods.
func (b *bench) countEvents(ctx context.Context) (int, error) {
	list, err := b.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	return len(list.Items) + int(ptr.Deref(list.RemainingItemCount, 0)), nil
}

// awaitEvents waits until there are so many events, or none has come for quiet. It returns how long
// the last one took, and how many are missing.
func (b *bench) awaitEvents(ctx context.Context, all int) (late time.Duration, missing int, err error) {
	const often, quiet = 100 * time.Millisecond, 10 * time.Second
	began, last := time.Now(), -1
	err = wait.PollUntilContextTimeout(ctx, often, b.long(b.pods), true, func(ctx context.Context) (bool, error) {
		n, err := b.countEvents(ctx)
		if n > last {
			last, late = n, time.Since(began)
		}
		return last >= all || time.Since(began) >= late+quiet, err
	})
	return late, max(0, all-last), err
}

// backlog creates the pods that are to be scheduled.
func (b *bench) backlog(ctx context.Context) error {
	return each(ctx, b.pods, func(ctx context.Context, i int) error {
		p := b.pod(namespace, fmt.Sprintf("pod-%d", i))
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{
			v1.ResourceCPU:    resource.MustParse("100m"),
			v1.ResourceMemory: resource.MustParse("100Mi"),
		}
		return b.create(ctx, p)
	})
}

// fill calls begin and waits until all pods are bound.
func (b *bench) fill(ctx context.Context, begin func() error) (took firstThenOthers, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begun, bound := make(chan struct{}), map[string]bool{}
	var began time.Time
	err = b.follow(ctx, namespace, metav1.ListOptions{FieldSelector: "spec.nodeName!="}, func() error {
		began = time.Now()
		go func() {
			defer close(begun)
			if err := begin(); err != nil {
				cancel(err)
			}
		}()
		return nil
	}, func(_ watch.EventType, p *v1.Pod) bool {
		bound[p.Name] = true
		if len(bound) == 1 {
			took.first = cmp.Or(took.first, time.Since(began))
		}
		return len(bound) == b.pods
	})
	took.all = time.Since(began)
	if err != nil {
		return took, fmt.Errorf("%d of %d pods were bound: %w", len(bound), b.pods, err)
	}
	<-begun
	return took, nil
}

// schedule has a scheduler start when all pods wait.
func (b *bench) schedule(ctx context.Context, start func() error) (firstThenOthers, error) {
	if err := b.backlog(ctx); err != nil {
		return firstThenOthers{}, err
	}
	took, err := b.fill(ctx, start)
	return took, firstError(err, b.removeAll(ctx))
}
