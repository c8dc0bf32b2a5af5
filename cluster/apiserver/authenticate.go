package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	requestunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"
)

// issuer is who service account tokens are from and, by default, for.
const issuer = "https://kubernetes.default.svc.cluster.local"

// tokenCacheTTL is how long a token that was found good is not looked at again (upstream's value):
// verifying a signature costs more than most requests.
const tokenCacheTTL = 10 * time.Second

// newAuthenticator returns what finds out who a request is from, in this order: certificates signed
// by the cluster's authority, users inside the process, static tokens, service accounts (by tokens
// that were asked for, and by those in Secrets), bootstrap tokens, issuers of JSON web tokens, a
// webhook. Anonymous clients may read the health endpoints and cluster-info only, unless the
// configuration says otherwise. ctx ends what asks issuers for their keys.
func newAuthenticator(ctx context.Context, o *Options, serverID string, inside *identities, ca dynamiccertificates.CAContentProvider,
	keys *serviceAccountKeys,
	client kubernetes.Interface, shared informers.SharedInformerFactory,
) (authenticator.Request, error) {
	core := shared.Core().V1()
	audiences := authenticator.Audiences{issuer}
	getter := serviceaccountcontroller.NewGetterFromClient(client,
		core.Secrets().Lister(), core.ServiceAccounts().Lister(), core.Pods().Lister(), core.Nodes().Lister())
	inSecrets, err := serviceaccount.NewLegacyValidator(true, getter, client.CoreV1())
	if err != nil {
		return nil, err
	}
	var tokens []authenticator.Token
	if o.TokenFile != "" {
		static, err := tokenfile.NewCSV(o.TokenFile)
		if err != nil {
			return nil, fmt.Errorf(`--token-file %s cannot be used (%w); each line is token,user,uid or token,user,uid,"group,group"`, o.TokenFile,
				err)
		}
		tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(audiences, static))
	}
	tokens = append(tokens,
		serviceaccount.JWTTokenAuthenticator([]string{issuer}, keys, audiences, serviceaccount.NewValidator(getter)),
		serviceaccount.JWTTokenAuthenticator([]string{serviceaccount.LegacyIssuer}, keys, audiences, inSecrets),
		authenticator.WrapAudienceAgnosticToken(audiences,
			bootstrap.NewTokenAuthenticator(core.Secrets().Lister().Secrets(metav1.NamespaceSystem))),
	)
	unknown := apiserverapi.AnonymousAuthConfig{Enabled: true, Conditions: []apiserverapi.AnonymousAuthCondition{
		{Path: "/healthz"}, {Path: "/livez"}, {Path: "/readyz"}, {Path: clusterInfoPath},
	}}
	if o.Authentication.Config != "" {
		// After service accounts: an issuer may be asked for its keys about each token that is not
		// its own.
		fromIssuers, config, err := newIssuers(ctx, &o.Authentication, serverID, o.Log)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(audiences, fromIssuers))
		if config.Anonymous != nil {
			unknown = *config.Anonymous
		}
	}
	if o.Authentication.TokenWebhook != "" {
		hook, err := o.Authentication.webhook(audiences)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, hook)
	}
	token := tokenunion.New(inside, tokencache.New(tokenunion.New(tokens...), true, tokenCacheTTL, 0))
	known := group.NewAuthenticatedGroupAdder(requestunion.New(
		newClientCertificates(ca.VerifyOptions),
		bearertoken.New(token),
		websocket.NewProtocolAuthenticator(token),
	))
	if !unknown.Enabled {
		return known, nil
	}
	return requestunion.NewFailOnError(known, anonymous.NewAuthenticator(unknown.Conditions)), nil
}

// quietly wraps an authenticator. Why credentials are refused is logged for debugging only: every
// client can send such requests, and upstream's server would log each.
func quietly(who authenticator.Request, log *slog.Logger) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		growStack() // the filter before this one has begun a goroutine, so that it can give up at the deadline
		response, ok, err := who.AuthenticateRequest(r)
		if err != nil {
			log.Debug("request not authenticated", "from", r.RemoteAddr, "err", err)
			return nil, false, nil
		}
		return response, ok, nil
	})
}

// readable says what to do about a certificate file that cannot be used.
func readable(path string, err error) error {
	if err == nil {
		return nil
	}
	if _, statErr := os.Stat(path); statErr != nil {
		err = statErr
	}
	return fmt.Errorf("the certificate in %s cannot be used (%w); remove the file to get a new one at the next start", path, err)
}
