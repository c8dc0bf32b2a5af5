package tokens

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Regression: while the API refused new tokens, a driver's volume asked for one at each call.
func TestARenewalThatFailsIsNotTriedAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		asked, away := 0, false
		kube.PrependReactor("create", "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) {
			if asked++; away {
				return true, nil, errors.New("the API is away")
			}
			return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
				Token: fmt.Sprintf("token-%d", asked), ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
			}}, nil
		})
		c, pod := New(kube, slog.New(slog.DiscardHandler)), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
		get := func(want string, times int) {
			t.Helper()
			status, err := c.Get(t.Context(), pod, Want{Audience: "vault"})
			if got := status.Token; err == nil && got != want || err != nil && want != "" || asked != times {
				t.Errorf("got %q, %v, the API was asked %d times; want %q, %d times", got, err, asked, want, times)
			}
		}
		get("token-1", 1)
		get("token-1", 1)
		time.Sleep(50 * time.Minute)
		away = true
		get("token-1", 2)
		get("token-1", 2)
		time.Sleep(RenewRetry)
		get("token-1", 3)
		if next := time.Until(c.Next("u")); next != RenewRetry {
			t.Errorf("the next look is in %v", next)
		}
		time.Sleep(10 * time.Minute)
		get("", 4) // it has expired
		away = false
		get("token-5", 5)
		c.Forget("u")
		get("token-6", 6)
	})
}
