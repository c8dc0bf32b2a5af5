package upstream_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cluster-bootstrap/token/jws"

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
