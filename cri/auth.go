package cri

import (
	"encoding/base64"
	"net/url"
	"strings"

	"github.com/distribution/reference"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/field"
	"github.com/coracle-project/coracle/image"
)

// credentials converts CRI's AuthConfig. Credentials that name another server than
// the image's registry are dropped, so that no other registry sees them. No error
// repeats a secret.
func credentials(a *runtimeapi.AuthConfig, ref string) (image.Auth, error) {
	if a == nil || !serves(a.GetServerAddress(), ref) {
		return image.Auth{}, nil
	}
	out := image.Auth{
		Username:      a.GetUsername(),
		Password:      a.GetPassword(),
		IdentityToken: a.GetIdentityToken(),
		RegistryToken: a.GetRegistryToken(),
	}
	if out.Username == "" && a.GetAuth() != "" {
		// Docker's config file pads the decoded form with NUL bytes.
		plain, err := base64.StdEncoding.DecodeString(a.GetAuth())
		if err != nil {
			return image.Auth{}, field.Invalid("auth.auth", "is not base64")
		}
		user, password, ok := strings.Cut(strings.Trim(string(plain), "\x00"), ":")
		if !ok {
			return image.Auth{}, field.Invalid("auth.auth", "does not decode to user:password")
		}
		out.Username, out.Password = user, password
	}
	return out, nil
}

// serves says whether credentials for server are meant for the registry of ref. An
// empty server is any. A ref that cannot be read has no registry.
func serves(server, ref string) bool {
	if server == "" {
		return true
	}
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return false
	}
	host := server
	if strings.Contains(server, "://") {
		u, err := url.Parse(server)
		if err != nil {
			return false
		}
		host = u.Host
	} else {
		host, _, _ = strings.Cut(server, "/")
	}
	return registryHost(host) == registryHost(reference.Domain(named))
}

// registryHost gives Docker Hub's several names one.
func registryHost(host string) string {
	switch host {
	case "docker.io", "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}
