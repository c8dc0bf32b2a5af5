package bootstraptoken

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

func TestTokensGoWhenTheyExpire(t *testing.T) {
	ctx := context.Background()
	apitest.Ours(New).As("token-cleaner").Run(t, func(t *testing.T, s *apitest.Server) {
		secrets := s.Kube.CoreV1().Secrets("kube-system")
		make := func(name string, kind corev1.SecretType, expires string) {
			data := map[string][]byte{}
			if expires != "" {
				data[bootstrapapi.BootstrapTokenExpirationKey] = []byte(expires)
			}
			if _, err := secrets.Create(ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Type: kind, Data: data,
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
		make("old", bootstrapapi.SecretTypeBootstrapToken, in(-time.Minute))
		make("soon", bootstrapapi.SecretTypeBootstrapToken, in(time.Hour))
		make("for-ever", bootstrapapi.SecretTypeBootstrapToken, "")
		make("no-token", corev1.SecretTypeOpaque, in(-time.Minute))
		make("unreadable", bootstrapapi.SecretTypeBootstrapToken, "tomorrow")
		want := func(n int) {
			t.Helper()
			list, err := secrets.List(ctx, metav1.ListOptions{})
			if err != nil || len(list.Items) != n {
				t.Errorf("%d Secrets, want %d, %v", len(list.Items), n, err)
			}
		}
		s.Settle()
		want(3) // an expiry that cannot be read counts as past
		s.Pass(59 * time.Minute)
		want(3)
		s.Pass(time.Minute)
		want(2)
	})
}
