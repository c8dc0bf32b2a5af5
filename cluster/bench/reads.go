package main

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	watchers = 200
	changes  = 200
	// pace is between two changes.
	pace = 50 * time.Millisecond
	// sent is the annotation with when a change was sent, in nanoseconds.
	sent = "bench/sent"
)

// wholeLists is how often all pods are listed.
const wholeLists = 10

// reads measures lists and watches while all simulated pods are there.
func (b *bench) reads(ctx context.Context) error {
	b.found(figure{Name: "… most memory but for files", Unit: "MB", Value: float64(b.peakMemory) / 1024})
	b.found(figure{Name: "… etcd's database", Unit: "MB", Value: float64(b.databaseSize()) / (1 << 20)})
	time.Sleep(settle)
	used := b.cpu()
	time.Sleep(beatEvery)
	b.found(figure{
		Name: fmt.Sprintf("leases of all nodes renewed every %v: CPU", beatEvery), Unit: "% of a core",
		Value: 100 * (b.cpu() - used).Seconds() / beatEvery.Seconds(),
	})
	for _, l := range []struct {
		name    string
		times   int
		options func(i int) metav1.ListOptions
	}{
		{"all pods, from the cache", wholeLists, func(int) metav1.ListOptions { return metav1.ListOptions{ResourceVersion: "0"} }},
		{"all pods, as they are now", wholeLists, func(int) metav1.ListOptions { return metav1.ListOptions{} }},
		{"the first 500 pods", changes, func(int) metav1.ListOptions { return metav1.ListOptions{Limit: 500} }},
		{"the pods of a node", changes, func(i int) metav1.ListOptions {
			return metav1.ListOptions{ResourceVersion: "0", FieldSelector: "spec.nodeName=" + simulatedNode(i%b.nodes)}
		}},
	} {
		var all []time.Duration
		for i := range l.times {
			began := time.Now()
			o := l.options(i) // what the client would take to decode it is not measured
			_, err := b.kube.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").VersionedParams(&o, scheme.ParameterCodec).DoRaw(ctx)
			if err != nil {
				return fmt.Errorf("list of %s: %w", l.name, err)
			}
			all = append(all, time.Since(began))
		}
		b.latency("list of "+l.name, all)
	}
	if err := b.oneMore(ctx); err != nil {
		return fmt.Errorf("one more pod: %w", err)
	}
	all, ended, err := b.fanOut(ctx)
	if err != nil {
		return fmt.Errorf("watches: %w", err)
	}
	b.found(figure{Name: fmt.Sprintf("of %d watches of all pods, ended by the API server", watchers), Unit: "1", Value: float64(ended)})
	b.latency(fmt.Sprintf("a change of a pod until each of %d watches of all has it", watchers), all)
	return nil
}

// databaseSize is how large the file of etcd's database is.
func (b *bench) databaseSize() (size int64) {
	_ = filepath.WalkDir(b.dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "db" && filepath.Base(filepath.Dir(path)) == "snap" {
			if about, err := entry.Info(); err == nil {
				size += about.Size()
			}
		}
		return nil // what cannot be read is not etcd's
	})
	return size
}

// oneMore measures how long one pod more takes to be bound, while nothing else is scheduled.
func (b *bench) oneMore(ctx context.Context) error {
	var all []time.Duration
	for i := range changes {
		name := fmt.Sprintf("more-%d", i)
		o := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
		var began time.Time
		create := func() error { began = time.Now(); return b.create(ctx, b.pod(namespace, name)) }
		err := b.follow(ctx, namespace, o, create, func(_ watch.EventType, p *v1.Pod) bool { return p.Spec.NodeName != "" })
		if err != nil {
			return err
		}
		all = append(all, time.Since(began))
	}
	b.latency("a pod's creation until it is bound, one at a time", all)
	return nil
}

// fanOut changes pods while many watch all of them, and returns for each change and watch how long
// it took from before the request. A watch that the API server has ended counts until then.
func (b *bench) fanOut(ctx context.Context) (all []time.Duration, ended int, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pods := b.kube.CoreV1().Pods(namespace)
	first, err := pods.List(ctx, metav1.ListOptions{Limit: changes})
	if err != nil {
		return nil, 0, err
	}
	var cut atomic.Int64
	seen := make([][]time.Duration, watchers)
	var watching errgroup.Group
	for i := range watchers {
		w, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: first.ResourceVersion})
		if err != nil {
			return nil, 0, err
		}
		watching.Go(func() error {
			defer w.Stop()
			for e := range w.ResultChan() {
				p, ok := e.Object.(*v1.Pod)
				if !ok {
					break
				}
				at, err := strconv.ParseInt(p.Annotations[sent], 10, 64)
				if err != nil {
					continue // another change
				}
				if seen[i] = append(seen[i], time.Since(time.Unix(0, at))); len(seen[i]) == len(first.Items) {
					return nil
				}
			}
			cut.Add(1)
			return context.Cause(ctx)
		})
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for _, p := range first.Items {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, sent, time.Now().UnixNano())
		if _, err := pods.Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return nil, 0, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
	err = watching.Wait()
	return slices.Concat(seen...), int(cut.Load()), err
}

// latency notes the median and the 99th percentile.
func (b *bench) latency(name string, all []time.Duration) {
	slices.Sort(all)
	if len(all) == 0 {
		return
	}
	for _, p := range []int{50, 99} {
		at := all[(len(all)*p-1)/100]
		b.found(figure{Name: fmt.Sprintf("%s: p%d", name, p), Unit: "ms", Value: float64(at) / float64(time.Millisecond)})
	}
}
