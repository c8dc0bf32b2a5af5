// Package bootstraptoken deletes bootstrap tokens when they expire. A token is a Secret of type
// bootstrap.kubernetes.io/token in kube-system with the time in its data; a timer is set from it.
package bootstraptoken

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/util/secrets"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/feed"
)

type cleaner struct {
	set    *client.Set
	tokens corelisters.SecretLister
	frame  *frame.Controller
}

// New returns the controller; its keys are Secrets. It watches Secrets of that type only.
func New(set *client.Set) *frame.Controller {
	tokens := coreinformers.NewFilteredSecretInformer(set.Kube, metav1.NamespaceSystem, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector("type", string(bootstrapapi.SecretTypeBootstrapToken)).String()
		})
	c := &cleaner{set: set, tokens: corelisters.NewSecretLister(tokens.GetIndexer())}
	c.frame = frame.New("bootstrap-token-cleaner", 1, set.Logger(), c.sync)
	feed.Own(c.frame, tokens, frame.Self)
	return c.frame
}

func (c *cleaner) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	secret, err := c.tokens.Secrets(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && secret.Type != bootstrapapi.SecretTypeBootstrapToken {
		return nil
	}
	if err != nil {
		return err
	}
	left, expired := secrets.GetExpiration(secret, time.Now())
	if !expired {
		if left > 0 {
			c.frame.AddAfter(key, left)
		}
		return nil
	}
	err = c.set.Kube.CoreV1().Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &secret.UID},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
