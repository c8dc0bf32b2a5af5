package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	watchers = 200
	changes  = 200
	// pace is between two changes.
	pace = 50 * time.Millisecond
	// sent is the annotation with when a change was sent, in nanoseconds.
	sent = "bench/sent"
)

// reads measures lists and watches while all simulated pods are there.
func (b *bench) reads(ctx context.Context) error {
	b.found(figure{Name: "… most memory but for files", Unit: "MB", Value: float64(b.peakMemory) / 1024})
	pods := b.kube.CoreV1().Pods(namespace)
	for _, l := range []struct {
		name    string
		times   int
		options func(i int) metav1.ListOptions
	}{
		{"all pods, from the cache", 20, func(int) metav1.ListOptions { return metav1.ListOptions{ResourceVersion: "0"} }},
		{"all pods, as they are now", 20, func(int) metav1.ListOptions { return metav1.ListOptions{} }},
		{"the first 500 pods", changes, func(int) metav1.ListOptions { return metav1.ListOptions{Limit: 500} }},
		{"the pods of a node", changes, func(i int) metav1.ListOptions {
			return metav1.ListOptions{ResourceVersion: "0", FieldSelector: "spec.nodeName=" + simulatedNode(i%b.nodes)}
		}},
	} {
		var all []time.Duration
		for i := range l.times {
			began := time.Now()
			if _, err := pods.List(ctx, l.options(i)); err != nil {
				return fmt.Errorf("list of %s: %w", l.name, err)
			}
			all = append(all, time.Since(began))
		}
		b.latency("list of "+l.name, all)
	}
	all, err := b.fanOut(ctx)
	if err != nil {
		return fmt.Errorf("watches: %w", err)
	}
	b.latency(fmt.Sprintf("a change of a pod until each of %d watches of all has it", watchers), all)
	return nil
}

// fanOut changes pods while many watch all of them, and returns for each change and watch how long
// it took from before the request.
func (b *bench) fanOut(ctx context.Context) (all []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pods := b.kube.CoreV1().Pods(namespace)
	first, err := pods.List(ctx, metav1.ListOptions{Limit: changes})
	if err != nil {
		return nil, err
	}
	seen := make([][]time.Duration, watchers)
	var watching errgroup.Group
	for i := range watchers {
		w, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: first.ResourceVersion})
		if err != nil {
			return nil, err
		}
		watching.Go(func() error {
			defer w.Stop()
			for e := range w.ResultChan() {
				p, ok := e.Object.(*v1.Pod)
				if !ok {
					return fmt.Errorf("%v", e.Object)
				}
				at, err := strconv.ParseInt(p.Annotations[sent], 10, 64)
				if err != nil {
					continue // another change
				}
				if seen[i] = append(seen[i], time.Since(time.Unix(0, at))); len(seen[i]) == len(first.Items) {
					return nil
				}
			}
			return fmt.Errorf("a watch ended after %d of %d changes", len(seen[i]), len(first.Items))
		})
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for _, p := range first.Items {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, sent, time.Now().UnixNano())
		if _, err := pods.Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return nil, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	err = watching.Wait()
	return slices.Concat(seen...), err
}

// latency notes the median and the 99th percentile.
func (b *bench) latency(name string, all []time.Duration) {
	slices.Sort(all)
	for _, p := range []int{50, 99} {
		at := all[(len(all)*p-1)/100]
		b.found(figure{Name: fmt.Sprintf("%s: p%d", name, p), Unit: "ms", Value: float64(at) / float64(time.Millisecond)})
	}
}
