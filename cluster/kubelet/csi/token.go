package csi

import (
	"context"
	"encoding/json"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/tokens"
)

// tokensFor returns the tokens of the pod's service account that the driver wants, as JSON by
// audience.
func (q *requests) tokensFor(ctx context.Context, r *request) (string, error) {
	if len(r.object.Spec.TokenRequests) == 0 {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	all := map[string]authenticationv1.TokenRequestStatus{}
	for _, asked := range r.object.Spec.TokenRequests {
		want := tokens.Want{Audience: asked.Audience}
		if asked.ExpirationSeconds != nil {
			want.Seconds = *asked.ExpirationSeconds
		}
		status, err := q.tokens.Get(ctx, r.spec.Pod, want)
		if err != nil {
			pod := r.spec.Pod
			return "", fmt.Errorf("make a token of service account %s/%s for driver %s: %w", pod.Namespace, pod.Spec.ServiceAccountName,
				r.driverName, err)
		}
		all[asked.Audience] = status
	}
	raw, err := json.Marshal(all)
	return string(raw), err
}
