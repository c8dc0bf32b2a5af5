package volume

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// A renewal that failed is tried again after this time, as long as the old token is good.
	renewRetry = 30 * time.Second
)

// tokenKey names one token of a pod.
type tokenKey struct {
	audience string
	seconds  int64
}

// token is one service account token; its value is never logged.
type token struct {
	value          []byte
	renew, expires time.Time
}

// tokenSource asks the API for tokens that are bound to their pods.
type tokenSource struct{ kube kubernetes.Interface }

// get returns the pod's token for a projection, renewed if it is old. When renewal fails and the
// old one is still good, that one is the answer.
func (s tokenSource) get(ctx context.Context, p *podVolumes, source *v1.ServiceAccountTokenProjection) ([]byte, error) {
	key := tokenKey{audience: source.Audience, seconds: 3600}
	if source.ExpirationSeconds != nil {
		key.seconds = *source.ExpirationSeconds
	}
	old := p.tokens[key]
	if old != nil && time.Now().Before(old.renew) {
		return old.value, nil
	}
	fresh, err := s.request(ctx, p.pod, key)
	switch {
	case err == nil:
		p.tokens[key] = fresh
		return fresh.value, nil
	case old == nil:
		return nil, fmt.Errorf("failed to fetch token: %w", err)
	case time.Now().After(old.expires):
		return nil, fmt.Errorf("token of service account %q expired and refresh failed: %w", p.pod.Spec.ServiceAccountName, err)
	}
	slog.Warn("token not renewed", "pod", p.pod.Namespace+"/"+p.pod.Name, "expires", old.expires, "err", err)
	old.renew = time.Now().Add(renewRetry)
	return old.value, nil
}

func (s tokenSource) request(ctx context.Context, pod *v1.Pod, key tokenKey) (*token, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &key.seconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
		},
	}}
	if key.audience != "" {
		request.Spec.Audiences = []string{key.audience}
	}
	var answer *authenticationv1.TokenRequest
	err := watched.OnceGranted(ctx, func() (err error) {
		answer, err = s.kube.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request,
			metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	if answer.Spec.ExpirationSeconds == nil {
		answer.Spec.ExpirationSeconds = &key.seconds
	}
	return &token{value: []byte(answer.Status.Token), expires: answer.Status.ExpirationTimestamp.Time, renew: RenewToken(answer)}, nil
}

// RenewToken is when a token is to be replaced that the API has made now.
func RenewToken(made *authenticationv1.TokenRequest) time.Time {
	expires := made.Status.ExpirationTimestamp.Time
	life := time.Until(expires)
	if made.Spec.ExpirationSeconds != nil {
		life = time.Duration(*made.Spec.ExpirationSeconds) * time.Second
	}
	issued := expires.Add(-life)
	return issued.Add(min(time.Duration(float64(life)*renewAfter), oldestToken) - rand.N(renewJitter))
}
