package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
)

// credentialsFor says with what a host is authenticated with: the operation's own if it
// is the registry itself, else what the Docker config has for it. It is asked when the host
// challenges us, and only for the host itself, never for where it redirects to.
func (c *Client) credentialsFor(registry string, h *Host, a Auth) auth.CredentialFunc {
	own := a
	if h.mirror {
		own = Auth{}
	}
	return func(ctx context.Context, host string) (auth.Credential, error) {
		switch {
		case host != h.Host:
			return auth.EmptyCredential, nil
		case own != Auth{}:
			return credential(own), nil
		case c.cfg.DockerConfig == "":
			return auth.EmptyCredential, nil
		}
		name := registry
		if h.mirror {
			name = h.Host
		}
		return fromDockerConfig(ctx, c.cfg.DockerConfig, name)
	}
}

// fromDockerConfig asks a Docker config file, or the helper that it names, each time: a
// change counts at once, and helpers hand out short-lived tokens. A helper (an executable
// docker-credential-NAME) ends with ctx.
func fromDockerConfig(ctx context.Context, path, registry string) (auth.Credential, error) {
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) { // no one has logged in yet
			return auth.EmptyCredential, nil
		}
		return auth.EmptyCredential, &credentialError{path, err}
	}
	store, err := credentials.NewStore(path, credentials.StoreOptions{})
	if err != nil {
		return auth.EmptyCredential, &credentialError{path, err}
	}
	cred, err := store.Get(ctx, credentials.ServerAddressFromRegistry(registry))
	if err != nil {
		return auth.EmptyCredential, &credentialError{path, err}
	}
	return cred, nil
}

// credentialError is a Docker config, or a helper, that cannot be asked.
type credentialError struct {
	path string
	err  error
}

func (e *credentialError) Error() string {
	return fmt.Sprintf("credentials by %s: %v", e.path, e.err)
}

func (e *credentialError) Unwrap() error { return e.err }

// credential picks the one kind that is used, in the order that Auth documents.
func credential(a Auth) auth.Credential {
	switch {
	case a.RegistryToken != "":
		return auth.Credential{AccessToken: a.RegistryToken}
	case a.IdentityToken != "":
		return auth.Credential{RefreshToken: a.IdentityToken}
	}
	return auth.Credential{Username: a.Username, Password: a.Password}
}
