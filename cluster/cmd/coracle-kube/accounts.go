package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"

	"github.com/coracle-project/coracle/cluster/client"
)

// callLimit is how long one call for an account or its token may take.
const callLimit = 10 * time.Second

// accounts returns what makes a Set for a service account in kube-system. The account is created if
// there is none, and its tokens are asked for in the name of manager, as upstream's controller
// manager does. Calls for accounts and tokens end with ctx.
func accounts(ctx context.Context, manager *client.Set) (func(name string) (*client.Set, error), error) {
	config := rest.CopyConfig(manager.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bounded{ctx, next} })
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	// Without the manager's credentials: a client certificate or a token in the configuration would
	// come before the account's token.
	bare := rest.AnonymousClientConfig(manager.Config)
	builder := clientbuilder.NewDynamicClientBuilder(bare, kube.CoreV1(), metav1.NamespaceSystem)
	return func(name string) (*client.Set, error) {
		config, err := builder.Config(name)
		if err != nil {
			return nil, err
		}
		return client.New(config, manager.Informers, manager.Log)
	}, nil
}

// bounded ends requests after callLimit, and when ctx ends: upstream's client builder has no
// context to pass.
type bounded struct {
	ctx  context.Context
	next http.RoundTripper
}

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), callLimit)
	unhook := context.AfterFunc(b.ctx, cancel)
	end := func() {
		unhook()
		cancel()
	}
	resp, err := b.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	resp.Body = boundedBody{resp.Body, end}
	return resp, nil
}

// boundedBody is a response's body, which ends its request's context when it is closed.
type boundedBody struct {
	io.ReadCloser
	end func()
}

func (b boundedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// awaitAPI waits until the API server is ready. It returns an error only if ctx ends before.
func awaitAPI(ctx context.Context, kube kubernetes.Interface, log *slog.Logger) error {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 7, Cap: 5 * time.Second}
	said := ""
	return backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").MaxRetries(0).Do(ctx).Error()
		if err == nil {
			return true, nil
		}
		if text := fmt.Sprint(err); text != said {
			log.Warn("the API server is not ready yet", "err", err)
			said = text
		}
		return false, nil
	})
}
