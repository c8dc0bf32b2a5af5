package cri

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

const (
	// listEvery is how often a runtime that serves no events is asked what it has.
	listEvery = time.Second
	// streamAgain is how often such a runtime is asked for events again: it may have been replaced
	// by a newer one.
	streamAgain = time.Minute
	// headerless is how soon a stream without a header is assumed to have started.
	headerless = 200 * time.Millisecond
)

// Watch calls changed with the UID of every pod in which the runtime created, started, lost or
// removed something, until ctx ends. It does not for a sandbox that is gone when the event of its
// removal is read: such an event does not name the pod. Watch calls resync when a stream of events
// starts, because events may have been missed. A runtime without GetContainerEvents is listed once
// a second instead.
func (c *Client) Watch(ctx context.Context, log *slog.Logger, changed func(types.UID), resync func()) {
	l := lister{log: log, client: c, changed: changed}
	for ctx.Err() == nil {
		err := c.stream(ctx, changed, resync)
		if ctx.Err() != nil {
			return
		}
		if grpcstatus.Code(err) == codes.Unimplemented {
			l.run(ctx, streamAgain)
			continue
		}
		log.Warn("runtime's events broke off", "err", err)
		sleep(ctx, listEvery)
	}
}

func (c *Client) stream(ctx context.Context, changed func(types.UID), resync func()) error {
	events, err := c.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	// Earlier events are not repeated. The stream's header tells that it has started.
	guessing, stop := context.WithCancel(ctx)
	var guesses sync.WaitGroup
	guesses.Go(func() { guess(guessing, resync) })
	header, err := events.Header()
	stop()
	guesses.Wait()
	if err == nil && header != nil {
		resync()
	}
	for {
		e, err := events.Recv()
		if err != nil {
			return err
		}
		if uid := eventUID(e); uid != "" {
			changed(uid)
		}
	}
}

// guess calls resync for runtimes that send no header before the first event: soon, because most
// streams have started by then, and now and then for a minute, because a machine may be slow.
func guess(ctx context.Context, resync func()) {
	for d := headerless; d < streamAgain; d *= 4 {
		if sleep(ctx, d); ctx.Err() != nil {
			return
		}
		resync()
	}
}

func eventUID(e *runtimeapi.ContainerEventResponse) types.UID {
	if uid := e.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
		return types.UID(uid)
	}
	for _, s := range e.GetContainersStatuses() {
		if uid := uidOf(s.GetLabels()); uid != "" {
			return uid
		}
	}
	return ""
}

// lister finds changes by comparing lists.
type lister struct {
	log     *slog.Logger
	client  *Client
	changed func(types.UID)
	known   map[string]item // by sandbox or container id; nil before the first list
}

type item struct {
	uid   types.UID
	state int32
}

// run lists once a second for d.
func (l *lister) run(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	tick := time.NewTicker(listEvery)
	defer tick.Stop()
	for {
		now, err := l.client.items(ctx)
		switch {
		case err == nil:
			l.compare(now)
		case ctx.Err() == nil:
			l.log.Warn("list what the runtime has", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (l *lister) compare(now map[string]item) {
	told := map[types.UID]bool{}
	tell := func(uid types.UID) {
		if uid != "" && !told[uid] {
			told[uid] = true
			l.changed(uid)
		}
	}
	for id, i := range now {
		if was, ok := l.known[id]; !ok || was != i {
			tell(i.uid)
		}
	}
	for id, i := range l.known {
		if _, ok := now[id]; !ok {
			tell(i.uid)
		}
	}
	l.known = now
}

func (c *Client) items(ctx context.Context) (map[string]item, error) {
	sandboxes, err := c.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	containers, err := c.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	all := make(map[string]item, len(sandboxes.Items)+len(containers.Containers))
	for _, s := range sandboxes.Items {
		all[s.Id] = item{types.UID(s.GetMetadata().GetUid()), int32(s.State)}
	}
	for _, k := range containers.Containers {
		all[k.Id] = item{uidOf(k.Labels), int32(k.State)}
	}
	return all, nil
}

func uidOf(labels map[string]string) types.UID {
	return types.UID(labels[kubelettypes.KubernetesPodUIDLabel])
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// LabelledPods returns the pods that a kubelet made and the runtime still has, as their labels and
// annotations remember them.
func (c *Client) LabelledPods(ctx context.Context) ([]*v1.Pod, error) { return c.labelled(ctx, nil) }

// LabelledPod returns one of the LabelledPods, nil if the runtime has nothing of it.
func (c *Client) LabelledPod(ctx context.Context, uid types.UID) (*v1.Pod, error) {
	pods, err := c.labelled(ctx, map[string]string{kubelettypes.KubernetesPodUIDLabel: string(uid)})
	if err != nil || len(pods) == 0 {
		return nil, err
	}
	return pods[0], nil
}

func (c *Client) labelled(ctx context.Context, selector map[string]string) ([]*v1.Pod, error) {
	sandboxes, err := c.Runtime.ListPodSandbox(ctx,
		&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: selector}})
	if err != nil {
		return nil, err
	}
	containers, err := c.Runtime.ListContainers(ctx,
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: selector}})
	if err != nil {
		return nil, err
	}
	labels := map[types.UID]map[string]string{}
	annotations := map[types.UID]map[string]map[string]string{}
	for _, s := range sandboxes.Items {
		if uid := uidOf(s.Labels); uid != "" {
			labels[uid] = s.Labels
		}
	}
	for _, k := range containers.Containers {
		uid := uidOf(k.Labels)
		if uid == "" {
			continue
		}
		if labels[uid] == nil {
			labels[uid] = k.Labels
		}
		if annotations[uid] == nil {
			annotations[uid] = map[string]map[string]string{}
		}
		annotations[uid][k.Labels[kubelettypes.KubernetesContainerNameLabel]] = k.Annotations
	}
	pods := make([]*v1.Pod, 0, len(labels))
	for uid, l := range labels {
		pods = append(pods, Remembered(l, annotations[uid]))
	}
	return pods, nil
}
