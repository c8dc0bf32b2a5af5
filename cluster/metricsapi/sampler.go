package metricsapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	listersv1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/metrics/pkg/apis/metrics"
)

// Reading is what a node's kubelet told at one time.
type Reading struct {
	Node       Usage
	Containers map[Container]Usage
}

// Container names a container of a cluster.
type Container struct{ Namespace, Pod, Name string }

// Usage is what a node or a container had used by a time.
type Usage struct {
	At time.Time
	// CPU is the time that processors have spent on it since it began.
	CPU time.Duration
	// Memory is its working set in bytes.
	Memory int64
	// Started is when it began, if that is known.
	Started time.Time
}

// Scrape reads one node's figures.
type Scrape func(ctx context.Context, node string) (*Reading, error)

const (
	// fresh is how long readings are good enough for those who ask.
	fresh = 15 * time.Second
	// apart is how far apart two readings must be to tell a rate.
	apart = time.Second
	// stale is how far apart they may be to tell how it is now.
	stale = 2 * time.Minute
	// scrapeTimeout bounds the reading of one node.
	scrapeTimeout = 10 * time.Second
	// scrapesAtOnce bounds how many nodes are read at a time.
	scrapesAtOnce = 16
)

// Sampler is a Source that reads all nodes when it is asked and its last readings are old. It is
// safe for concurrent use; those who ask while nodes are being read wait for that.
type Sampler struct {
	scrape Scrape
	nodes  listersv1.NodeLister
	pods   listersv1.PodLister
	log    *slog.Logger

	// turn holds one token: who takes it guards the fields below.
	turn   chan struct{}
	taken  time.Time
	before map[string]*Reading
	now    map[string]*Reading
}

// NewSampler returns a source that reads the nodes that the lister has by scrape. The listers also
// tell the labels that the figures are given. log must not be nil.
func NewSampler(scrape Scrape, nodes listersv1.NodeLister, pods listersv1.PodLister, log *slog.Logger) *Sampler {
	return &Sampler{scrape: scrape, nodes: nodes, pods: pods, log: log, turn: make(chan struct{}, 1)}
}

// readings returns two readings of each node that told them, the older one first.
func (s *Sampler) readings(ctx context.Context) (before, now map[string]*Reading, err error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if time.Since(s.taken) < fresh {
		return s.before, s.now, nil
	}
	before, began := s.now, time.Now()
	if began.Sub(s.taken) > stale || len(before) == 0 {
		if before, err = s.readAll(ctx); err != nil {
			return nil, nil, err
		}
		timer := time.NewTimer(apart)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	if now, err = s.readAll(ctx); err != nil {
		return nil, nil, err
	}
	s.before, s.now, s.taken = before, now, time.Now()
	return before, now, nil
}

// readAll reads all nodes at once. Of those that do not answer there are no figures; it is an error
// if that is true of all.
func (s *Sampler) readAll(ctx context.Context) (map[string]*Reading, error) {
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var (
		mu       sync.Mutex
		readings = make(map[string]*Reading, len(nodes))
		errs     []error
		wg       sync.WaitGroup
		slots    = make(chan struct{}, scrapesAtOnce)
	)
	for _, node := range nodes {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
			defer cancel()
			r, err := s.scrape(ctx, node.Name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("node %s: %w", node.Name, err))
				return
			}
			readings[node.Name] = r
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		if len(readings) == 0 {
			return nil, err
		}
		s.log.Warn("figures of some nodes are missing", "err", err)
	}
	return readings, nil
}

// rate is what was used between two readings.
type rate struct {
	at     time.Time
	window time.Duration
	usage  v1.ResourceList
}

// between computes a rate. It fails if the readings do not tell one: what began in between is taken
// to have used evenly since.
func between(before *Usage, now Usage) (rate, bool) {
	if before == nil || now.CPU < before.CPU {
		if now.Started.IsZero() || before != nil && now.Started.Before(before.At) {
			return rate{}, false
		}
		before = &Usage{At: now.Started}
	}
	window := now.At.Sub(before.At)
	if window <= 0 {
		return rate{}, false
	}
	cores := float64(now.CPU-before.CPU) / float64(window)
	return rate{at: now.At, window: window, usage: usage(cores, now.Memory)}, true
}

// NodeMetrics implements Source.
func (s *Sampler) NodeMetrics(ctx context.Context) ([]metrics.NodeMetrics, error) {
	before, now, err := s.readings(ctx)
	if err != nil {
		return nil, err
	}
	var list []metrics.NodeMetrics
	for name, reading := range now {
		var old *Usage
		if b := before[name]; b != nil {
			old = &b.Node
		}
		r, ok := between(old, reading.Node)
		node, err := s.nodes.Get(name)
		if !ok || err != nil {
			continue
		}
		list = append(list, metrics.NodeMetrics{
			ObjectMeta: described(name, "", node.Labels), Timestamp: stamp(r.at), Window: lasting(r.window),
			Usage: r.usage,
		})
	}
	return list, nil
}

// PodMetrics implements Source. A pod is left out as long as one of its containers' usage is not
// known. What a node tells of pods that it does not run is left out: it may lie.
func (s *Sampler) PodMetrics(ctx context.Context) ([]metrics.PodMetrics, error) {
	before, now, err := s.readings(ctx)
	if err != nil {
		return nil, err
	}
	type pod struct{ namespace, name string }
	pods := map[pod]*metrics.PodMetrics{}
	objects := map[pod]*v1.Pod{}
	unknown := map[pod]bool{}
	for node, reading := range now {
		for container, usage := range reading.Containers {
			object, err := s.pods.Pods(container.Namespace).Get(container.Pod)
			if err != nil || object.Spec.NodeName != node {
				continue
			}
			key := pod{container.Namespace, container.Pod}
			objects[key] = object
			var old *Usage
			if b := before[node]; b != nil {
				if u, ok := b.Containers[container]; ok {
					old = &u
				}
			}
			r, ok := between(old, usage)
			if !ok {
				unknown[key] = true
				continue
			}
			p := pods[key]
			if p == nil {
				p = &metrics.PodMetrics{Timestamp: stamp(r.at), Window: lasting(r.window)}
				pods[key] = p
			}
			// All containers get one time and one window: the earliest and the shortest.
			if r.at.Before(p.Timestamp.Time) {
				p.Timestamp = stamp(r.at)
			}
			p.Window = lasting(min(r.window, p.Window.Duration))
			p.Containers = append(p.Containers, metrics.ContainerMetrics{Name: container.Name, Usage: r.usage})
		}
	}
	var list []metrics.PodMetrics
	for key, p := range pods {
		if unknown[key] {
			continue
		}
		sortContainers(p, objects[key])
		p.ObjectMeta = described(key.name, key.namespace, objects[key].Labels)
		list = append(list, *p)
	}
	return list, nil
}
