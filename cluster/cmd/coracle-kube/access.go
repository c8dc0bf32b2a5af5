package main

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/coracle-project/coracle/cluster/apiserver"
)

// access are the flags for who is let in, and what pods may be. Names and defaults are upstream's,
// but for the last, for which upstream has a file.
type access struct {
	authentication apiserver.AuthenticationOptions
	podSecurity    string
}

func (a *access) define(f *pflag.FlagSet) {
	o := &a.authentication
	f.StringVar(&o.Config, "authentication-config", "",
		"`FILE` with an AuthenticationConfiguration: issuers of tokens (OpenID Connect); changes take effect within a minute")
	f.StringVar(&o.TokenWebhook, "authentication-token-webhook-config-file", "", "kubeconfig `FILE` of a server that is asked about tokens")
	f.StringVar(&o.TokenWebhookVersion, "authentication-token-webhook-version", apiserver.DefaultTokenWebhookVersion,
		"version of authentication.k8s.io in which it is asked: v1 or v1beta1")
	f.DurationVar(&o.TokenWebhookTTL, "authentication-token-webhook-cache-ttl", apiserver.DefaultTokenWebhookTTL,
		"how long its answers are remembered")
	f.StringVar(&a.podSecurity, "pod-security", "",
		"`LEVEL` of the Pod Security Standards in namespaces that name none: privileged, baseline or restricted (default: privileged)")
}

// check says what is wrong with the flags and their files, if anything.
func (a *access) check() error {
	return errors.Join(a.authentication.Check(), apiserver.CheckPodSecurity(a.podSecurity))
}
