// Package images sees to it that a container's image is on the node before the container is made,
// and that images which no one uses go when their disk fills up.
//
// Upstream's image manager decides: pull policy, pull secrets, who may use an image that was pulled
// with someone's credentials, back-off, and the words of events and errors. This package is what
// that manager pulls with (CRI), tells when a failed pull is worth another try, and lets pulls go
// on in parallel.
package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/credentialprovider"
	kubeimages "k8s.io/kubernetes/pkg/kubelet/images"
	"k8s.io/kubernetes/pkg/kubelet/images/pullmanager"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/kubelet/ref"
)

// A failed pull is tried again after 10 s, doubling up to 5 min.
const (
	backOffFirst = 10 * time.Second
	backOffMost  = 5 * time.Minute
	// backOffTold is how long a pull's own error is shown before it is said that pulls are held
	// back.
	backOffTold = 2 * time.Second
)

// Sizes of the in-memory caches of who pulled what.
const (
	intentsCached = 32
	pullsCached   = 256
	lockStripes   = 16
)

// Failure is why a container's image is not there: a waiting container's reason and message.
type Failure struct {
	Reason, Message string
	// Until is when another try makes sense.
	Until time.Time
}

func (f *Failure) Error() string { return f.Reason + ": " + f.Message }

// Secrets returns a Secret by namespace and name.
type Secrets func(ctx context.Context, namespace, name string) (*v1.Secret, error)

// Puller gets images.
type Puller struct {
	manager kubeimages.ImageManager
	backOff *flowcontrol.Backoff
	secrets Secrets
	records *pullmanager.PullManager
	log     *slog.Logger

	mu   sync.Mutex
	ends map[string]time.Time // of back-offs, by the image manager's keys
}

// NewPuller returns a Puller that remembers under rootDir who pulled which image with which
// credentials.
func NewPuller(client *cri.Client, recorder record.EventRecorder, secrets Secrets, rootDir string, log *slog.Logger) (*Puller, error) {
	service := &service{images: client.Images}
	files, err := pullmanager.NewFSPullRecordsAccessor(klog.Background(), rootDir)
	if err != nil {
		return nil, fmt.Errorf("records of image pulls: %w", err)
	}
	cached := pullmanager.NewCachedPullRecordsAccessor(klog.Background(), files, intentsCached, pullsCached, lockStripes)
	records, err := pullmanager.NewImagePullManager(context.Background(), cached, pullmanager.NeverVerifyPreloadedPullPolicy(), service,
		lockStripes)
	if err != nil {
		return nil, fmt.Errorf("records of image pulls: %w", err)
	}
	backOff := flowcontrol.NewBackOff(backOffFirst, backOffMost)
	return &Puller{
		manager: kubeimages.NewImageManager(withoutCanceled{recorder}, credentialprovider.NewDefaultDockerKeyring(), service, records,
			backOff, false, nil, 0, 0, unrecorded{}),
		backOff: backOff, secrets: secrets, records: records, log: log, ends: map[string]time.Time{},
	}, nil
}

// Ensure returns the id of the container's image, pulling it if the container's policy or its
// absence asks for that. An error is a *Failure.
func (p *Puller) Ensure(ctx context.Context, pod *v1.Pod, c *v1.Container, sandbox *runtimeapi.PodSandboxConfig,
	handler string,
) (string, error) {
	secrets := p.pullSecrets(ctx, pod)
	id, message, err := p.manager.EnsureImageExists(ctx, ref.Container(pod, c), pod, c.Image, secrets, sandbox, handler, c.ImagePullPolicy)
	if err == nil {
		return id, nil
	}
	return "", &Failure{Reason: err.Error(), Message: message, Until: p.until(pod.UID, c.Image, err)}
}

// until says when another try makes sense. After a failed pull that is soon: the image manager will
// then say that it backs off, which is what people look for; after that, it is when the image
// manager lets the next pull through.
func (p *Puller) until(uid types.UID, image string, err error) time.Time {
	now := time.Now()
	key := fmt.Sprintf("%s_%s", uid, image) // the image manager's
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case errors.Is(err, kubeimages.ErrImageNeverPull), errors.Is(err, kubeimages.ErrInvalidImageName),
		errors.Is(err, kubeimages.ErrImageInspect):
		return now.Add(backOffFirst)
	case errors.Is(err, kubeimages.ErrImagePullBackOff):
		if end, ok := p.ends[key]; ok && end.After(now) {
			return end
		}
		return now.Add(backOffFirst)
	}
	for k, end := range p.ends {
		if now.Sub(end) > backOffMost {
			delete(p.ends, k)
		}
	}
	// A moment later than the end of the back-off, whose beginning is not known to the millisecond.
	p.ends[key] = now.Add(p.backOff.Get(key) + 50*time.Millisecond)
	return now.Add(backOffTold)
}

// pullSecrets returns the secrets that the pod names for pulling. One that cannot be read is left
// out: the image may be public, and if not the pull's own error tells.
func (p *Puller) pullSecrets(ctx context.Context, pod *v1.Pod) []v1.Secret {
	var secrets []v1.Secret
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		s, err := p.secrets(ctx, pod.Namespace, ref.Name)
		if err != nil {
			p.log.Warn("read a pull secret", "pod", pod.Namespace+"/"+pod.Name, "secret", ref.Name, "err", err)
			continue
		}
		secrets = append(secrets, *s)
	}
	return secrets
}

// withoutCanceled drops the image manager's complaints about pulls that were given up because the
// pod was ended.
type withoutCanceled struct{ record.EventRecorder }

func (r withoutCanceled) Event(object runtime.Object, kind, reason, message string) {
	if kind == v1.EventTypeWarning && strings.Contains(message, context.Canceled.Error()) {
		return
	}
	r.EventRecorder.Event(object, kind, reason, message)
}

// unrecorded takes the image manager's notes on how long pulls take, which no one reads.
type unrecorded struct{}

func (unrecorded) RecordImageStartedPulling(types.UID)  {}
func (unrecorded) RecordImageFinishedPulling(types.UID) {}
