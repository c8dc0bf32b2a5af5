package volume

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/tokens"
)

// tokens makes the API issue token-1, token-2 and so on, each good for as long as it was asked for.
func (n *node) tokens(fail func() error) { n.tokensBy(0, fail) }

// tokensBy is tokens of an API server whose clock is ahead of this machine's.
func (n *node) tokensBy(ahead time.Duration, fail func() error) {
	issued := 0
	n.kube.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "token" {
			return false, nil, nil
		}
		if err := fail(); err != nil {
			return true, nil, err
		}
		issued++
		request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest).DeepCopy()
		request.Status = authenticationv1.TokenRequestStatus{
			Token:               fmt.Sprintf("token-%d", issued),
			ExpirationTimestamp: metav1.NewTime(time.Now().Add(ahead + time.Duration(*request.Spec.ExpirationSeconds)*time.Second)),
		}
		return true, request, nil
	})
}

func TestTokensAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		var away atomic.Bool
		n.tokens(func() error {
			if away.Load() {
				return context.DeadlineExceeded
			}
			return nil
		})
		pod := podWith(vol("api", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: mode644, Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](3600)}},
		}}}))
		pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: ptr.To[int64](1234)}
		n.mount(pod)
		name := n.path(pod, layout.VolumesDir, "kubernetes.io~projected/api/token")
		token := func(want string) {
			t.Helper()
			synctest.Wait()
			if data, err := os.ReadFile(name); err != nil || string(data) != want {
				t.Errorf("after %v: %q %v, want %s", time.Now(), data, err, want)
			}
		}
		token("token-1")
		var s unix.Stat_t
		if err := unix.Stat(name, &s); err != nil || s.Uid != 1234 || s.Mode&0o777 != 0o600 {
			t.Errorf("user %d, mode %o, %v", s.Uid, s.Mode, err)
		}
		time.Sleep(47 * time.Minute)
		token("token-1")
		time.Sleep(time.Minute)
		token("token-2")
		// The API is away for a while: the old token stays, and a new one comes when it is back.
		away.Store(true)
		time.Sleep(50 * time.Minute)
		token("token-2")
		away.Store(false)
		time.Sleep(2 * tokens.RenewRetry)
		token("token-3")
		n.unmount(pod)
	})
}

// Regression: a look that could not have its turn within two minutes, as a container's mounts on a
// server that is away took it, was the last one: the pod's token was not renewed any more.
func TestTokenIsRenewedAfterAnotherHadTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tokens(func() error { return nil })
		pod := podWith(vol("api", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: mode644, Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](3600)}},
		}}}))
		n.mount(pod)
		p, err := n.enter(t.Context(), pod.UID)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute)
		p.leave()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		wantFile(t, n.path(pod, layout.VolumesDir, "kubernetes.io~projected/api/token"), "token-2")
		n.unmount(pod)
	})
}

// A pod's token ends while its node is cut off, and the pod has a new one soon after. Regression:
// until then the kubelet asked for it every second.
func TestTokenThatEndsDuringACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.looked = nil // it would wait for someone who counts the looks
		var cut atomic.Bool
		var asked atomic.Int64
		n.tokens(func() error {
			asked.Add(1)
			if cut.Load() {
				return context.DeadlineExceeded
			}
			return nil
		})
		const life = 10 * time.Minute // the shortest that the API gives
		pod := podWith(vol("api", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: mode644, Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To(int64(life.Seconds()))}},
		}}}))
		n.mount(pod)
		name := n.path(pod, layout.VolumesDir, "kubernetes.io~projected/api/token")
		token := func(want string) {
			t.Helper()
			synctest.Wait()
			if data, err := os.ReadFile(name); err != nil || string(data) != want {
				t.Errorf("%q %v, want %s", data, err, want)
			}
		}
		cut.Store(true)
		time.Sleep(life)
		token("token-1")
		before := asked.Load()
		time.Sleep(life)
		if tries := time.Duration(asked.Load() - before); tries > life/tokenBackoff+10 {
			t.Errorf("in %v without the API, a token was asked for %d times", life, tries)
		}
		cut.Store(false)
		time.Sleep(tokenBackoff)
		token("token-2")
		n.unmount(pod)
	})
}

// Tokens are renewed in time on a node whose clock is wrong. Regression: with a clock that was
// ahead the kubelet asked for a token every second, with one that was behind the pod's token ended
// first.
func TestTokensWithAWrongClock(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"behind": time.Hour, "ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.looked = nil
				var asked atomic.Int64
				n.tokensBy(ahead, func() error { asked.Add(1); return nil })
				pod := podWith(vol("api", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: mode644, Sources: []v1.VolumeProjection{
					{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](600)}},
				}}}))
				n.mount(pod)
				time.Sleep(7 * time.Minute)
				synctest.Wait()
				if n := asked.Load(); n != 1 {
					t.Errorf("a token of 10 minutes was asked for %d times in 7", n)
				}
				time.Sleep(2 * time.Minute)
				n.unmount(pod)
				if n := asked.Load(); n != 2 {
					t.Errorf("a token of 10 minutes was asked for %d times in 9", n)
				}
			})
		})
	}
}

func TestTokenErrors(t *testing.T) {
	n := newNode(t)
	n.tokens(func() error { return fmt.Errorf(`serviceaccounts "sa" not found`) })
	pod := podWith(vol("api", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: mode644, Sources: []v1.VolumeProjection{
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
	}}}))
	err := n.Mount(context.Background(), pod)
	if want := `MountVolume.SetUp failed for volume "api" : failed to fetch token: serviceaccounts "sa" not found`; err == nil ||
		err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	n.unmount(pod)
}
