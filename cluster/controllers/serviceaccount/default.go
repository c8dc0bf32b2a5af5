// Package serviceaccount gives every namespace its "default" ServiceAccount, and fills the Secrets
// of type kubernetes.io/service-account-token that users make with tokens that do not expire.
//
// Both controllers are level-triggered: a default account that is deleted comes back while its
// namespace is active, a Secret whose account is gone is deleted. What a namespace that is being
// deleted refuses is no error; everything else is repeated with the frame's back-off.
package serviceaccount

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

const defaultName = "default"

type defaults struct {
	set        *client.Set
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
}

// New returns the controller of default accounts; its keys are namespaces.
func New(set *client.Set) *frame.Controller {
	namespaces, accounts := set.Informers.Core().V1().Namespaces(), set.Informers.Core().V1().ServiceAccounts()
	c := &defaults{set: set, namespaces: namespaces.Lister(), accounts: accounts.Lister()}
	f := frame.New("serviceaccount", 1, set.Logger(), c.sync)
	f.Watch(namespaces.Informer(), frame.Self)
	f.Watch(accounts.Informer(), func(obj any) []string {
		if account, ok := obj.(*corev1.ServiceAccount); ok && account.Name == defaultName {
			return []string{account.Namespace}
		}
		return nil
	})
	return f
}

func (c *defaults) sync(ctx context.Context, namespace string) error {
	ns, err := c.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) || err == nil && ns.Status.Phase != corev1.NamespaceActive {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := c.accounts.ServiceAccounts(namespace).Get(defaultName); !apierrors.IsNotFound(err) {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: defaultName}}
	_, err = c.set.Kube.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}
