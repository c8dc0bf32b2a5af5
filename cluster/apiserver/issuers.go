package apiserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	utilwebhook "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	tokenwebhook "k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// AuthenticationOptions say whose tokens are accepted besides the cluster's own. The files, the
// flags and the defaults are upstream's.
type AuthenticationOptions struct {
	// Config is the file of an AuthenticationConfiguration: issuers of JSON web tokens (OpenID
	// Connect), and what clients may ask for that show nothing.
	Config string
	// TokenWebhook is a kubeconfig of a server that is asked about tokens that nothing else knows,
	// in TokenWebhookVersion of its API (v1beta1 by default). Its answers are remembered for
	// TokenWebhookTTL.
	TokenWebhook, TokenWebhookVersion string
	TokenWebhookTTL                   time.Duration

	// poll is how often the configuration is looked at, ask how often new issuers are asked whether
	// they answer; refused is told why a changed file is not used. For tests.
	poll, ask time.Duration
	refused   func(error)
}

const (
	authenticationFlag      = "--authentication-config"
	tokenWebhookFlag        = "--authentication-token-webhook-config-file"
	tokenWebhookVersionFlag = "--authentication-token-webhook-version"
	// DefaultTokenWebhookTTL and DefaultTokenWebhookVersion are upstream's.
	DefaultTokenWebhookTTL     = 2 * time.Minute
	DefaultTokenWebhookVersion = "v1beta1"
	// issuerLimit is how long new issuers have to answer. Until then the last ones stay in force.
	issuerLimit = time.Minute
	// issuerGrace is how long requests under way may still need the issuers of before.
	issuerGrace = time.Minute
	issuerPoll  = time.Minute // upstream's value
	issuerAsk   = time.Second
	// issuerTimeout bounds a request to an issuer (upstream's value).
	issuerTimeout = 30 * time.Second
)

// Check says what is wrong with the options, and on which line of a file.
func (o *AuthenticationOptions) Check() error {
	if o.Config != "" {
		if _, _, err := o.load(); err != nil {
			return err
		}
	}
	if o.TokenWebhook == "" {
		return nil
	}
	_, err := o.webhook(nil)
	return err
}

// load reads the AuthenticationConfiguration. Unknown fields are errors.
func (o *AuthenticationOptions) load() (*apiserverapi.AuthenticationConfiguration, []byte, error) {
	data, err := os.ReadFile(o.Config)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", authenticationFlag, err)
	}
	config, err := parseAuthentication(data)
	if err != nil {
		return nil, data, inFile(authenticationFlag, o.Config, data, err)
	}
	return config, data, nil
}

func parseAuthentication(data []byte) (*apiserverapi.AuthenticationConfiguration, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("the file is empty")
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoded, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	config, ok := decoded.(*apiserverapi.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("it is no AuthenticationConfiguration, but a %s", decoded.GetObjectKind().GroupVersionKind().Kind)
	}
	return config, validation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), config,
		[]string{issuer}).ToAggregate()
}

// webhook returns what asks the server of TokenWebhook.
func (o *AuthenticationOptions) webhook(audiences authenticator.Audiences) (authenticator.Token, error) {
	version := o.TokenWebhookVersion
	switch version {
	case "":
		version = DefaultTokenWebhookVersion
	case "v1", "v1beta1":
	default:
		return nil, fmt.Errorf("%s %q is neither v1 nor v1beta1", tokenWebhookVersionFlag, version)
	}
	config, err := utilwebhook.LoadKubeconfig(o.TokenWebhook, nil)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", tokenWebhookFlag, o.TokenWebhook, err)
	}
	config.Wrap(limitAnswers)
	asking, err := tokenwebhook.New(config, version, audiences, *tokenwebhook.DefaultRetryBackoff())
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", tokenWebhookFlag, o.TokenWebhook, err)
	}
	return foreign{tokencache.New(asking, false, o.TokenWebhookTTL, o.TokenWebhookTTL)}, nil
}

// foreign does not ask about tokens that say they are the cluster's own, good or not: with one that
// has expired on the server's clock only, the webhook could act as its holder.
type foreign struct{ authenticator.Token }

// AuthenticateToken implements authenticator.Token.
func (f foreign) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if from := issuerOf(token); from == issuer || from == serviceaccount.LegacyIssuer {
		return nil, false, nil
	}
	return f.Token.AuthenticateToken(ctx, token)
}

// issuerOf returns what a JSON web token says about its issuer, which is not verified.
func issuerOf(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	_ = json.Unmarshal(payload, &claims)
	return claims.Issuer
}

// issuers verifies tokens of the issuers in an AuthenticationConfiguration. Changes of its file
// take effect within a minute, when the new issuers answer. A file that is no good is logged, and
// what was read before stays in force.
type issuers struct {
	options  *AuthenticationOptions
	serverID string
	running  context.Context // ends what asks issuers for their keys
	log      *slog.Logger
	current  atomic.Pointer[verifiers]
}

// verifiers are what one file's issuers are verified with.
type verifiers struct {
	authenticator.Token
	health func() error
	stop   context.CancelFunc
}

// newIssuers follows the file until ctx ends, and returns the configuration as it is now.
func newIssuers(ctx context.Context, o *AuthenticationOptions,
	serverID string, log *slog.Logger,
) (*issuers, *apiserverapi.AuthenticationConfiguration, error) {
	config, data, err := o.load()
	if err != nil {
		return nil, nil, err
	}
	i := &issuers{options: o, serverID: serverID, running: ctx, log: log}
	first, err := i.verifiers(config)
	if err != nil {
		return nil, nil, inFile(authenticationFlag, o.Config, data, err)
	}
	i.current.Store(first)
	go i.follow(ctx, config, data)
	return i, config, nil
}

// AuthenticateToken implements authenticator.Token.
func (i *issuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return i.current.Load().AuthenticateToken(ctx, token)
}

// verifiers returns what verifies tokens of the issuers of config. Their keys are asked for in the
// background.
func (i *issuers) verifiers(config *apiserverapi.AuthenticationConfiguration) (*verifiers, error) {
	ctx, stop := context.WithCancel(i.running)
	var tokens []authenticator.Token
	var checks []func() error
	for _, from := range config.JWT {
		o := oidc.Options{
			JWTAuthenticator: from, SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(), DisallowedIssuers: []string{issuer},
			APIServerID: i.serverID,
		}
		if pem := from.Issuer.CertificateAuthority; pem != "" {
			ca, err := dynamiccertificates.NewStaticCAContent("oidc-authenticator", []byte(pem))
			if err != nil {
				stop()
				return nil, err
			}
			o.CAContentProvider = ca
		}
		if from.Issuer.EgressSelectorType == "" { // upstream refuses the others
			client, err := issuerClient(o.CAContentProvider)
			if err != nil {
				stop()
				return nil, err
			}
			o.Client, o.CAContentProvider = client, nil
		}
		one, err := oidc.New(ctx, o)
		if err != nil {
			stop()
			return nil, err
		}
		tokens, checks = append(tokens, one), append(checks, one.HealthCheck)
	}
	health := func() error {
		var errs []error
		for _, check := range checks {
			errs = append(errs, check())
		}
		return errors.Join(errs...)
	}
	return &verifiers{tokenunion.NewFailOnError(tokens...), health, stop}, nil
}

// issuerClient returns the client that upstream would make for an issuer, but for the limit of
// answers. Without ca it trusts the host's roots.
func issuerClient(ca oidc.CAContentProvider) (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != nil {
		roots, err := certutil.NewPoolFromBytes(ca.CurrentCABundleContent())
		if err != nil {
			return nil, fmt.Errorf("certificateAuthority: %w", err)
		}
		config.RootCAs = roots
	}
	transport := utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: config})
	return &http.Client{Transport: limitAnswers(transport), Timeout: issuerTimeout}, nil
}

// follow takes over changes of the file until ctx ends.
func (i *issuers) follow(ctx context.Context, first *apiserverapi.AuthenticationConfiguration, known []byte) {
	tick := time.NewTicker(cmp.Or(i.options.poll, issuerPoll))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		config, data, err := i.options.load()
		if data != nil && bytes.Equal(data, known) {
			continue
		}
		if err == nil && !reflect.DeepEqual(first.Anonymous, config.Anonymous) {
			err = inFile(authenticationFlag, i.options.Config, data,
				errors.New("anonymous: it was changed, which takes effect at the next start only; put it back until then"))
		}
		if err == nil {
			err = i.change(ctx, config)
		} else if data != nil {
			known = data // it is no good, and will not get better by itself
		}
		if err != nil {
			i.log.Error("authentication configuration is not used; the last one stays in force", "err", err)
			if i.options.refused != nil {
				i.options.refused(err)
			}
			continue
		}
		known = data
		i.log.Info("authentication configuration was read again", "file", i.options.Config)
	}
}

// change puts the issuers of config in force when all of them answer.
func (i *issuers) change(ctx context.Context, config *apiserverapi.AuthenticationConfiguration) error {
	next, err := i.verifiers(config)
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, cmp.Or(i.options.ask, issuerAsk), issuerLimit, true, func(context.Context) (bool, error) {
		return next.health() == nil, nil
	})
	if err != nil {
		next.stop()
		return fmt.Errorf("%s %s: %w", authenticationFlag, i.options.Config, next.health())
	}
	last := i.current.Swap(next)
	time.AfterFunc(issuerGrace, last.stop)
	return nil
}
