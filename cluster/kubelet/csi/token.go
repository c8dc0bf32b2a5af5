package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/kubelet/volume"
)

// tokenKey names one token of a pod's service account.
type tokenKey struct {
	pod      types.UID
	audience string
	// seconds is the life that the driver asks for, 0 for the API's own.
	seconds int64
}

// token is never logged.
type token struct {
	status authenticationv1.TokenRequestStatus
	renew  time.Time
}

// tokensFor returns the tokens of the pod's service account that the driver wants, as JSON by
// audience.
func (n *Node) tokensFor(ctx context.Context, r *request) (string, error) {
	if len(r.object.Spec.TokenRequests) == 0 {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	all := map[string]authenticationv1.TokenRequestStatus{}
	for _, want := range r.object.Spec.TokenRequests {
		status, err := n.token(ctx, r, want)
		if err != nil {
			pod := r.spec.Pod
			return "", fmt.Errorf("make a token of service account %s/%s for driver %s: %w", pod.Namespace, pod.Spec.ServiceAccountName,
				r.driverName, err)
		}
		all[want.Audience] = status
	}
	raw, err := json.Marshal(all)
	return string(raw), err
}

// token returns a token, made again when most of its life has passed. If that fails, the old one is
// the answer while it is valid.
func (n *Node) token(ctx context.Context, r *request, want storagev1.TokenRequest) (authenticationv1.TokenRequestStatus, error) {
	key := tokenKey{pod: r.user.pod, audience: want.Audience}
	if want.ExpirationSeconds != nil {
		key.seconds = *want.ExpirationSeconds
	}
	n.mu.Lock()
	old, has := n.tokens[key]
	n.mu.Unlock()
	if has && time.Now().Before(old.renew) {
		return old.status, nil
	}
	var audiences []string
	if want.Audience != "" {
		audiences = []string{want.Audience}
	}
	pod := r.spec.Pod
	answer, err := n.opts.Kube.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName,
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				Audiences: audiences, ExpirationSeconds: want.ExpirationSeconds,
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		if has && time.Now().Before(old.status.ExpirationTimestamp.Time) {
			slog.Warn("csi: a token is not renewed", "pod", pod.Namespace+"/"+pod.Name, "expires", old.status.ExpirationTimestamp, "err", err)
			return old.status, nil
		}
		return authenticationv1.TokenRequestStatus{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tokens[key] = token{status: answer.Status, renew: volume.RenewToken(answer)}
	return answer.Status, nil
}
