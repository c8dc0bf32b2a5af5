package trust

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/distribution/reference"

	"github.com/coracle-project/coracle/internal/stricttoml"
)

// policyFile is a policy as it is written.
type policyFile struct {
	Default string               `toml:"default"`
	Scope   map[string]scopeFile `toml:"scope"`
}

type scopeFile struct {
	Policy string `toml:"policy"`
	// Keys, SignedAs and AnyRepository are for cosign: PEM files with public keys, the
	// repository that signatures of images copied from elsewhere name, and that signatures
	// count whatever repository they name, or none.
	Keys          []string `toml:"keys"`
	SignedAs      string   `toml:"signed_as"`
	AnyRepository bool     `toml:"any_repository"`
	// Certificates and Identities are for notation: PEM files with authorities, and
	// the distinguished names of signers; without any, every signer certified by them.
	Certificates []string `toml:"certificates"`
	Identities   []string `toml:"identities"`
}

// maxKeyFile bounds a file with keys or certificates.
const maxKeyFile = 1 << 20

// File is where a policy is.
type File struct {
	Path string
	// Optional says that a file that is not there accepts everything.
	Optional bool
}

// Load reads the file and what it names. A zero File, or an optional one that is not
// there, is the policy that accepts everything.
func (f File) Load() (*Policy, error) {
	if f.Path == "" {
		return &Policy{byDef: accept{}}, nil
	}
	data, err := stricttoml.ReadFile(f.Path)
	if f.Optional && errors.Is(err, fs.ErrNotExist) && absent(f.Path) {
		return &Policy{byDef: accept{}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("signature policy: %w", err)
	}
	p, err := parsePolicy(data, filepath.Dir(f.Path))
	if err != nil {
		return nil, fmt.Errorf("signature policy %s: %w", f.Path, err)
	}
	p.path = f.Path
	return p, nil
}

// absent says that there is not even a link at path: one that leads nowhere, as while a
// mounted ConfigMap is changed, is a policy that cannot be read.
func absent(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// parsePolicy reads a policy in dir, to which relative paths refer.
func parsePolicy(data []byte, dir string) (*Policy, error) {
	var f policyFile
	if err := stricttoml.Decode(data, &f); err != nil {
		return nil, err
	}
	p := &Policy{scopes: make(map[string]rule, len(f.Scope))}
	switch f.Default {
	case "accept":
		p.byDef = accept{}
	case "reject":
		p.byDef = reject{}
	default:
		return nil, fmt.Errorf("default: %q is neither accept nor reject", f.Default)
	}
	for scope, s := range f.Scope {
		key := stricttoml.KeyName([]string{"scope", scope})
		if err := checkScope(scope); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		r, err := s.rule(dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		name := canonical(scope)
		if p.scopes[name] != nil {
			return nil, fmt.Errorf("%s: is set twice, in letters of another case or under another name of its registry", key)
		}
		p.scopes[name] = r
	}
	return p, nil
}

// checkScope wants the beginning of a repository's full name, as references are
// normalized to: a scope that never fits would silently protect nothing.
func checkScope(scope string) error {
	const rest = "/some/name" // of one part, Docker Hub's names get another before it
	named, err := reference.ParseNormalizedNamed(scope + rest)
	if err != nil || named.Name() != scope+rest {
		return errors.New("is not a registry or the beginning of a repository, such as docker.io/library or registry.example:5000/team")
	}
	return nil
}

func (s *scopeFile) rule(dir string) (rule, error) {
	switch s.Policy {
	case "accept", "reject":
		if err := s.unused("keys", "signed_as", "any_repository", "certificates", "identities"); err != nil {
			return nil, err
		}
		if s.Policy == "reject" {
			return reject{}, nil
		}
		return accept{}, nil
	case "cosign":
		if err := s.unused("certificates", "identities"); err != nil {
			return nil, err
		}
		if s.AnyRepository && s.SignedAs != "" {
			return nil,
				errors.New("signed_as and any_repository: one says which repository signatures name, the other that it does not matter; give one")
		}
		c, err := newCosign(s.Keys, s.SignedAs, dir)
		if err != nil {
			return nil, err
		}
		c.anyRepository = s.AnyRepository
		return c, nil
	case "notation":
		if err := s.unused("keys", "signed_as", "any_repository"); err != nil {
			return nil, err
		}
		return newNotation(s.Certificates, s.Identities, dir)
	}
	return nil, fmt.Errorf("policy: %q is none of accept, reject, cosign, notation", s.Policy)
}

// unused refuses keys that the policy would ignore.
func (s *scopeFile) unused(keys ...string) error {
	set := map[string]bool{
		"keys": s.Keys != nil, "signed_as": s.SignedAs != "", "any_repository": s.AnyRepository,
		"certificates": s.Certificates != nil, "identities": s.Identities != nil,
	}
	for _, key := range keys {
		if set[key] {
			return fmt.Errorf("%s has no meaning with the policy %q", key, s.Policy)
		}
	}
	return nil
}

// readKeyFile reads a file that the policy names.
func readKeyFile(dir, name string) ([]byte, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxKeyFile {
		return nil, fmt.Errorf("%s is not a file of at most %d bytes", name, maxKeyFile)
	}
	return os.ReadFile(name)
}

// repository is the part of a claimed reference that names the repository.
func repository(ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(strings.TrimSpace(ref))
	if err != nil {
		return "", err
	}
	return named.Name(), nil
}
