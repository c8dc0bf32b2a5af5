package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// How long answers of the API server are believed: upstream's defaults.
const (
	tokenTTL = 2 * time.Minute
	allowTTL = 5 * time.Minute
	denyTTL  = 30 * time.Second
)

// auth decides who may ask what.
type auth struct {
	nodeName string
	who      authenticator.Request
	may      authorizer.Authorizer
	clientCA *dynamiccertificates.DynamicFileCAContent // nil for none
	log      *slog.Logger
}

func newAuth(opts Options) (*auth, error) {
	a := &auth{log: opts.Log, nodeName: opts.NodeName, who: opts.Authenticator, may: opts.Authorizer}
	var ca dynamiccertificates.CAContentProvider
	if opts.ClientCAFile != "" {
		var err error
		if a.clientCA, err = dynamiccertificates.NewDynamicCAContentFromFile("client-ca", opts.ClientCAFile); err != nil {
			return nil, fmt.Errorf("client CA of the kubelet's API: %w", err)
		}
		ca = a.clientCA
	}
	if (a.who == nil || a.may == nil) && opts.Kube == nil {
		return nil, errors.New("the kubelet's API needs a client of the API server to ask who may use it")
	}
	if a.who == nil {
		who, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
			Anonymous:                          &apiserver.AnonymousAuthConfig{Enabled: false},
			TokenAccessReviewClient:            opts.Kube.AuthenticationV1(),
			TokenAccessReviewTimeout:           10 * time.Second,
			WebhookRetryBackoff:                genericoptions.DefaultAuthWebhookRetryBackoff(),
			CacheTTL:                           tokenTTL,
			ClientCertificateCAContentProvider: ca,
		}.New()
		if err != nil {
			return nil, err
		}
		a.who = who
	}
	if a.may == nil {
		may, err := authorizerfactory.DelegatingAuthorizerConfig{
			SubjectAccessReviewClient: opts.Kube.AuthorizationV1(),
			AllowCacheTTL:             allowTTL,
			DenyCacheTTL:              denyTTL,
			WebhookRetryBackoff:       genericoptions.DefaultAuthWebhookRetryBackoff(),
		}.New()
		if err != nil {
			return nil, err
		}
		a.may = may
	}
	return a, nil
}

// wrap lets through to next only what its sender may ask.
func (a *auth) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok, err := a.who.AuthenticateRequest(r)
		if err != nil {
			// Anyone can send such requests, and could fill the journal.
			a.log.Debug("kubelet API: request not authenticated", "from", r.RemoteAddr, "err", err)
		}
		if err != nil || !ok {
			fail(w, http.StatusUnauthorized, "Unauthorized")
			return
		}
		attributes := a.attributes(answer.User, r)
		subresources := make([]string, 0, len(attributes))
		for _, attr := range attributes {
			subresources = append(subresources, attr.Subresource)
			decision, _, err := a.may.Authorize(r.Context(), attr)
			if err != nil {
				text := fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=%s, subresource=%s)", attr.User.GetName(), attr.Verb,
					attr.Resource, attr.Subresource)
				a.log.Warn("kubelet API: "+text, "err", err)
				fail(w, http.StatusInternalServerError, text)
				return
			}
			if decision == authorizer.DecisionAllow {
				next.ServeHTTP(w, r)
				return
			}
		}
		fail(w, http.StatusForbidden, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)\n",
			answer.User.GetName(), attributes[0].Verb, subresources))
	})
}

// attributes are the accesses that each allow the request: that to the finest subresource of the
// node for the path, and, where upstream takes that as well, that to proxy, which covers all paths.
func (a *auth) attributes(u user.Info, r *http.Request) []authorizer.AttributesRecord {
	verbs := map[string]string{"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
	var list []authorizer.AttributesRecord
	for _, subresource := range subresources(r.URL.Path) {
		list = append(list, authorizer.AttributesRecord{
			User: u, Verb: verbs[r.Method], APIVersion: "v1", Resource: "nodes", Subresource: subresource,
			Name: a.nodeName, ResourceRequest: true, Path: r.URL.Path,
		})
	}
	return list
}

func subresources(path string) []string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "stats", "metrics", "checkpoint", "statusz":
		return []string{first}
	case "logs":
		return []string{"log"}
	case "flagz":
		return []string{"configz"}
	case "pods", "healthz", "configz":
		return []string{first, "proxy"}
	case "runningpods":
		return []string{"pods", "proxy"}
	}
	return []string{"proxy"}
}
