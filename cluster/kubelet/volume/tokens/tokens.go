// Package tokens asks the API for tokens of pods' service accounts, for volumes and for drivers.
// They are bound to their pods, and made again before they expire.
//
// The age of a token counts from its arrival: the API's clock says when it expires, and this
// machine's clock may differ from that.
package tokens

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/watched"
)

const (
	// A token is renewed when this much of its life has passed,
	renewAfter = 0.8
	// but not later than a day after it was issued,
	oldestToken = 24 * time.Hour
	// and earlier by a random part of this, so that tokens of one age are not renewed at once.
	renewJitter = 10 * time.Second
	// RenewRetry is when a renewal that failed is tried again, as long as the old token is good.
	RenewRetry = 30 * time.Second
)

// Want names one token of a pod's service account.
type Want struct {
	// Audience is "" for the API server.
	Audience string
	// Seconds is how long it is to be good, 0 for the API's own choice.
	Seconds int64
}

// token is never logged.
type token struct {
	status authenticationv1.TokenRequestStatus
	// renew is when it is to be replaced, and ends when it ends, in both readings of the clock.
	renew, ends time.Time
}

// over says whether a time has come: while the process ran, or by the clock, which has also counted
// the time for which the machine slept.
func over(at time.Time) bool {
	now := time.Now()
	return !now.Before(at) || !now.Round(0).Before(at.Round(0))
}

// Cache has the tokens of pods. It is safe for concurrent use.
type Cache struct {
	log  *slog.Logger
	kube kubernetes.Interface

	mu   sync.Mutex
	pods map[types.UID]map[Want]token
}

// New returns an empty cache. It touches nothing.
func New(kube kubernetes.Interface, log *slog.Logger) *Cache {
	return &Cache{log: log, kube: kube, pods: map[types.UID]map[Want]token{}}
}

// Get returns a token, a new one if most of its life has passed. If the
// API server gives none and the old one is still valid, Get returns the old one. Error texts are
// upstream's.
func (c *Cache) Get(ctx context.Context, pod *v1.Pod, want Want) (authenticationv1.TokenRequestStatus, error) {
	c.mu.Lock()
	old, has := c.pods[pod.UID][want]
	c.mu.Unlock()
	if has && !over(old.renew) {
		return old.status, nil
	}
	fresh, err := c.request(ctx, pod, want)
	switch {
	case err == nil:
	case !has:
		return fresh.status, fmt.Errorf("failed to fetch token: %w", err)
	case over(old.ends):
		return fresh.status, fmt.Errorf("token of service account %q expired and refresh failed: %w", pod.Spec.ServiceAccountName, err)
	default:
		c.log.Warn("token not renewed", "pod", pod.Namespace+"/"+pod.Name, "expires", old.status.ExpirationTimestamp, "err", err)
		fresh = token{status: old.status, renew: time.Now().Add(RenewRetry), ends: old.ends}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods[pod.UID] == nil {
		c.pods[pod.UID] = map[Want]token{}
	}
	c.pods[pod.UID][want] = fresh
	return fresh.status, nil
}

func (c *Cache) request(ctx context.Context, pod *v1.Pod, want Want) (token, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if want.Seconds != 0 {
		request.Spec.ExpirationSeconds = &want.Seconds
	}
	if want.Audience != "" {
		request.Spec.Audiences = []string{want.Audience}
	}
	var answer *authenticationv1.TokenRequest
	var asked time.Time
	err := watched.OnceGranted(ctx, func() (err error) {
		asked = time.Now()
		answer, err = c.kube.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request,
			metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return token{}, err
	}
	if answer.Spec.ExpirationSeconds == nil {
		answer.Spec.ExpirationSeconds = request.Spec.ExpirationSeconds
	}
	return arrived(answer, asked), nil
}

// arrived is a token that was asked for at a time.
func arrived(made *authenticationv1.TokenRequest, asked time.Time) token {
	life := made.Status.ExpirationTimestamp.Sub(asked)
	if made.Spec.ExpirationSeconds != nil {
		life = time.Duration(*made.Spec.ExpirationSeconds) * time.Second
	}
	return token{
		status: made.Status, ends: asked.Add(life),
		renew: asked.Add(min(time.Duration(float64(life)*renewAfter), oldestToken) - rand.N(renewJitter)),
	}
}

// Next returns when the first of a pod's tokens is to be renewed, the zero time if it has none.
func (c *Cache) Next(pod types.UID) (next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.pods[pod] {
		if next.IsZero() || t.renew.Before(next) {
			next = t.renew
		}
	}
	return next
}

// Forget drops a pod's tokens.
func (c *Cache) Forget(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, pod)
}
