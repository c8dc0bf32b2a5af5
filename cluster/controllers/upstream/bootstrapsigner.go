package upstream

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/kubernetes/pkg/controller/bootstrap"

	"github.com/coracle-project/coracle/cluster/client"
)

// signAgain is how often the signatures are looked at without an event: upstream's controller does
// not repeat an update that failed.
const signAgain = time.Minute

// BootstrapSigner signs the ConfigMap cluster-info with each bootstrap token, so that a machine
// that has a token recognizes its cluster. It starts with the first token.
type BootstrapSigner struct {
	tokens, info informers.SharedInformerFactory
	signer       *OnDemand
}

// NewBootstrapSigner returns the controller. It watches no Secrets but bootstrap tokens, and no
// ConfigMap but that one.
func NewBootstrapSigner(set *client.Set) *BootstrapSigner {
	only := func(namespace, field, value string) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(set.Kube, 0, informers.WithNamespace(namespace),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = fields.OneTermEqualSelector(field, value).String() }))
	}
	b := &BootstrapSigner{
		tokens: only(metav1.NamespaceSystem, "type", string(bootstrapapi.SecretTypeBootstrapToken)),
		info:   only(metav1.NamespacePublic, metav1.ObjectNameField, bootstrapapi.ConfigMapClusterInfo),
	}
	b.signer = &OnDemand{
		name: "bootstrap-signer", informers: b.info, trigger: b.tokens.Core().V1().Secrets().Informer(),
		make: func(context.Context, *gate) (func(context.Context), error) {
			o := bootstrap.DefaultSignerOptions()
			o.ConfigMapResync = signAgain
			// Its handlers only fill a queue, so they need no gate.
			c, err := bootstrap.NewSigner(set.Kube, b.tokens.Core().V1().Secrets(), b.info.Core().V1().ConfigMaps(), o)
			if err != nil {
				return nil, err
			}
			return c.Run, nil
		},
	}
	return b
}

// Run works until ctx ends.
func (b *BootstrapSigner) Run(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	b.tokens.Start(ctx.Done())
	b.signer.Run(ctx)
	stop()
	b.tokens.Shutdown()
	b.info.Shutdown()
}
