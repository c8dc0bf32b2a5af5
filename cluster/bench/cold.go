package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// poll is how often the API is asked what cannot be watched yet.
const poll = 10 * time.Millisecond

// patience ends a phase that does not come to its end.
const patience = 5 * time.Minute

// long is patience with so many objects: 20 a second are few.
func (b *bench) long(objects int) time.Duration {
	return patience + time.Duration(objects)*50*time.Millisecond
}

// connect returns a client as soon as the kubeconfig is there and the API server says that it is
// ready.
func connect(ctx context.Context, kubeconfig string) (kubernetes.Interface, error) {
	var kube kubernetes.Interface
	var last error
	err := wait.PollUntilContextTimeout(ctx, poll, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		if kube == nil {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				last = err
				return false, nil
			}
			config.QPS = -1
			config.ContentType = "application/vnd.kubernetes.protobuf"
			config.AcceptContentTypes = config.ContentType + ",application/json"
			if kube, err = kubernetes.NewForConfig(config); err != nil {
				return false, err
			}
		}
		last = kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return last == nil, nil
	})
	if err != nil && last != nil {
		err = fmt.Errorf("%w: %w", err, last)
	}
	return kube, err
}

// coldStart measures from nothing on disk. The image is pulled, too, from a registry on loopback.
func (b *bench) coldStart(ctx context.Context) error {
	began := time.Now()
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return b.stack.start(ctx) })
	work.Go(func() (err error) {
		if b.kube, err = connect(ctx, b.stack.kubeconfig()); err != nil {
			return err
		}
		b.took("cold start: API ready", time.Since(began))
		work.Go(func() error {
			err := b.until(ctx, func(ctx context.Context) (bool, error) {
				node, err := b.kube.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
				if err == nil && short(node) != "" {
					return false, fmt.Errorf("the node has %s: pods do not run; make room on this machine", short(node))
				}
				return err == nil && slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
					return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
				}), nil
			})
			if err == nil {
				b.took("cold start: node Ready", time.Since(began))
			}
			return err
		})
		create := func() error { return b.createWhenPossible(ctx, b.pod("default", "first")) }
		err = b.follow(ctx, "default", metav1.ListOptions{FieldSelector: "metadata.name=first"}, create,
			func(_ watch.EventType, p *v1.Pod) bool { return p.Status.Phase == v1.PodRunning })
		if err == nil {
			b.took("cold start: first pod Running", time.Since(began))
		}
		return err
	})
	if err := work.Wait(); err != nil {
		return err
	}
	version, err := b.kube.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	b.out.Version = version.GitVersion
	_, err = b.kube.CoreV1().Namespaces().Create(context.Background(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	return err
}

// short names what the node runs short of, "" if nothing.
func short(node *v1.Node) v1.NodeConditionType {
	for _, c := range node.Status.Conditions {
		if c.Status == v1.ConditionTrue && c.Type != v1.NodeReady {
			return c.Type
		}
	}
	return ""
}

// namespace is where all but the first pod are.
const namespace = "bench"

// pod is the payload: a program that ends on SIGTERM.
func (b *bench) pod(namespace, name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "bench"}},
		Spec:       b.podSpec(),
	}
}

func (b *bench) podSpec() v1.PodSpec {
	return v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: b.image, Command: []string{"/pause"}}}}
}

// createWhenPossible tries until the namespace has its service account and the like.
func (b *bench) createWhenPossible(ctx context.Context, p *v1.Pod) error {
	var last error
	err := b.until(ctx, func(ctx context.Context) (bool, error) {
		_, last = b.kube.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("create pod %s: %w: %v", p.Name, err, last)
	}
	return nil
}

func (b *bench) until(ctx context.Context, f wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextTimeout(ctx, poll, patience, true, f)
}

// follow watches pods from now on, calls begin once the watch is open, and shows each event to done
// until that returns true. A watch that the API server ends, because we read too slowly for a
// moment, is taken up again where it ended. If the API server has forgotten the events since then,
// done sees pods that are gone as Deleted, with their names only, and all others as Added, also
// those that it has seen.
func (b *bench) follow(ctx context.Context, namespace string, o metav1.ListOptions, begin func() error,
	done func(watch.EventType, *v1.Pod) bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, b.long(b.pods))
	defer cancel()
	pods := b.kube.CoreV1().Pods(namespace)
	now, err := pods.List(ctx, o)
	if err != nil {
		return err
	}
	known := map[string]bool{} // pods that done has seen, and not their end
	show := func(event watch.EventType, p *v1.Pod) bool {
		if delete(known, p.Name); event != watch.Deleted {
			known[p.Name] = true
		}
		return done(event, p)
	}
	for o.ResourceVersion = now.ResourceVersion; ctx.Err() == nil; {
		w, err := pods.Watch(ctx, o)
		if err == nil {
			if begin != nil {
				if err := begin(); err != nil {
					w.Stop()
					return err
				}
				begin = nil
			}
			var finished bool
			finished, err = drain(w, &o.ResourceVersion, show)
			w.Stop()
			if finished {
				return nil
			}
		}
		if err == nil {
			continue
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			return firstError(context.Cause(ctx), err)
		}
		o.ResourceVersion = ""
		all, err := pods.List(ctx, o)
		if err != nil {
			return firstError(context.Cause(ctx), err)
		}
		gone := maps.Clone(known)
		for i := range all.Items {
			delete(gone, all.Items[i].Name)
		}
		for name := range gone {
			if show(watch.Deleted, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}) {
				return nil
			}
		}
		for i := range all.Items {
			if show(watch.Added, &all.Items[i]) {
				return nil
			}
		}
		o.ResourceVersion = all.ResourceVersion
	}
	return context.Cause(ctx)
}

// drain shows the events of a watch to done until that returns true, or the watch ends, and notes
// the version of the last one.
func drain[T metav1.Object](w watch.Interface, version *string, done func(watch.EventType, T) bool) (finished bool, err error) {
	for e := range w.ResultChan() {
		object, ok := e.Object.(T)
		if !ok {
			return false, apierrors.FromObject(e.Object)
		}
		*version = object.GetResourceVersion()
		if done(e.Type, object) {
			return true, nil
		}
	}
	return false, nil
}

const (
	settle   = 20 * time.Second
	idleTime = 30 * time.Second
)

// idle measures control plane and kubelet with one pod running.
func (b *bench) idle(ctx context.Context) error {
	time.Sleep(settle)
	before, _ := usage(b.stack.programs())
	time.Sleep(idleTime)
	after, sizes := usage(b.stack.programs())
	var sum int64
	for name, kB := range sizes {
		sum += kB
		if len(sizes) > 2 {
			fmt.Fprintf(os.Stderr, "cluster-bench: %s: %d kB\n", name, kB)
		}
	}
	b.found(figure{Name: "idle: PSS of all processes", Unit: "MB", Value: float64(sum) / 1024})
	b.found(figure{Name: "idle: CPU over 30 s", Unit: "% of a core", Value: 100 * (after - before).Seconds() / idleTime.Seconds()})
	return ctx.Err()
}

// usage is what all processes that run programs have used of the CPU, and their PSS in kB.
func usage(programs []string) (cpu time.Duration, sizes map[string]int64) {
	sizes = map[string]int64{}
	for _, dir := range processes(programs) {
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		if _, rest, ok := strings.Cut(string(stat), ") "); ok {
			for _, field := range strings.Fields(rest)[11:13] { // utime, stime, in 1/100 s
				ticks, _ := strconv.Atoi(field)
				cpu += time.Duration(ticks) * 10 * time.Millisecond
			}
		}
		rollup, _ := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
		for line := range strings.Lines(string(rollup)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
				kB, _ := strconv.ParseInt(f[1], 10, 64)
				exe, _ := os.Readlink(filepath.Join(dir, "exe"))
				sizes[filepath.Base(exe)] += kB
			}
		}
	}
	return cpu, sizes
}
