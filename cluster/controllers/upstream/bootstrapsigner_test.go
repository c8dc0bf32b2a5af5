package upstream_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/cluster-bootstrap/token/jws"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/upstream"
	"github.com/coracle-project/coracle/cluster/node/token"
)

// cluster-info has a signature of each token that exists.
func TestClusterInfoIsSigned(t *testing.T) {
	c := whole(t)
	ctx, _ := c.namespace(t)
	public := c.kube.CoreV1().ConfigMaps("kube-public")
	info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": "some content"}}
	eventually(ctx, t, "cluster-info", func() (bool, error) { // its namespace is made a moment after the start
		_, err := public.Create(ctx, info, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err), err
	})
	text, made, err := token.Create(ctx, c.kube, token.New{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	id, secret, err := token.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	signed := func(content string) (bool, error) {
		info, err := public.Get(ctx, "cluster-info", metav1.GetOptions{})
		return err == nil && info.Data["kubeconfig"] == content &&
			jws.DetachedTokenIsValid(info.Data["jws-kubeconfig-"+id], content, id, secret), err
	}
	eventually(ctx, t, "a signature", func() (bool, error) { return signed("some content") })
	eventually(ctx, t, "a change", func() (bool, error) {
		info, err := public.Get(ctx, "cluster-info", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		info.Data["kubeconfig"] = "another content"
		_, err = public.Update(ctx, info, metav1.UpdateOptions{})
		return err == nil, err
	})
	eventually(ctx, t, "a signature of the change", func() (bool, error) { return signed("another content") })
	if err := token.Delete(ctx, c.kube, made.ID); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the end of the signature", func() (bool, error) {
		info, err := public.Get(ctx, "cluster-info", metav1.GetOptions{})
		return err == nil && info.Data["jws-kubeconfig-"+id] == "", err
	})
}

// signing runs the signer for a time in an API that has these objects, and returns cluster-info
// then.
func signing(t *testing.T, fail func() error, objects ...runtime.Object) (data map[string]string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset(objects...)
		kube.PrependReactor("update", "configmaps", func(ktesting.Action) (bool, runtime.Object, error) {
			err := fail()
			return err != nil, nil, err
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			upstream.NewBootstrapSigner(&client.Set{Kube: kube}).Run(ctx)
		}()
		time.Sleep(5 * time.Minute)
		stop()
		<-ended
		info, err := kube.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		data = info.Data
	})
	return data
}

func clusterInfo(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: data}
}

func TestAFailedSignatureIsMadeAgain(t *testing.T) {
	const id, secret = "abcdef", "0123456789abcdef"
	failed := 0
	var first time.Time
	data := signing(t, func() error {
		if first.IsZero() {
			first = time.Now()
		}
		if time.Since(first) < time.Second { // events of both informers may wake it
			failed++
			return errors.New("the store is away")
		}
		return nil
	}, clusterInfo(map[string]string{"kubeconfig": "content"}), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken,
		Data: map[string][]byte{"token-id": []byte(id), "token-secret": []byte(secret), "usage-bootstrap-signing": []byte("true")},
	})
	if failed == 0 || !jws.DetachedTokenIsValid(data["jws-kubeconfig-"+id], "content", id, secret) {
		t.Errorf("%d updates failed, %v", failed, data)
	}
}

// The last token was deleted while no controller worked.
func TestASignatureWithoutATokenIsRemoved(t *testing.T) {
	data := signing(t, func() error { return nil }, clusterInfo(map[string]string{"kubeconfig": "content", "jws-kubeconfig-abcdef": "x"}))
	if _, there := data["jws-kubeconfig-abcdef"]; there || data["kubeconfig"] != "content" {
		t.Errorf("%v", data)
	}
}
