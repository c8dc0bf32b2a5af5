package trust

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/registry"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// repo is a repository in memory.
type repo struct {
	name  string
	tags  map[string]digest.Digest
	blobs map[digest.Digest][]byte
	// broken, if not nil, is what every request fails with.
	broken error
	asked  int
}

func newRepo(name string) *repo {
	return &repo{name: name, tags: map[string]digest.Digest{}, blobs: map[digest.Digest][]byte{}}
}

// cosigned is what cosign 3.1.3 has left in a registry: image 1 is signed in both ways,
// image 2 has an attestation by the same key, and no signature.
func cosigned(t testing.TB) *repo {
	t.Helper()
	r := newRepo("127.0.0.1:5977/team/app")
	dir := "testdata/cosign"
	files, err := os.ReadDir(dir)
	must(t, err)
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		must(t, err)
		if f.Name() == "tags.json" {
			must(t, json.Unmarshal(data, &r.tags))
		}
		r.blobs[digest.FromBytes(data)] = data
	}
	return r
}

func (r *repo) String() string { return r.name }

func (r *repo) Resolve(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error) {
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: r.tags[tag]}
	data, err := r.Fetch(ctx, d)
	d.Size = int64(len(data))
	return d, data, err
}

func (r *repo) Fetch(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
	r.asked++
	if r.broken != nil {
		return nil, r.broken
	}
	data, ok := r.blobs[d.Digest]
	if !ok {
		return nil, fmt.Errorf("%w: %s", registry.ErrNotFound, d.Digest)
	}
	return data, nil
}

func (r *repo) Referrers(ctx context.Context, d digest.Digest, _ string) ([]ocispec.Descriptor, error) {
	_, data, err := r.Resolve(ctx, strings.Replace(d.String(), ":", "-", 1))
	if errors.Is(err, registry.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var index ocispec.Index
	err = json.Unmarshal(data, &index)
	return index.Manifests, err
}

func (r *repo) put(data []byte) ocispec.Descriptor {
	d := digest.FromBytes(data)
	r.blobs[d] = data
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(data))}
}

func (r *repo) putJSON(t testing.TB, v any) ocispec.Descriptor {
	t.Helper()
	data, err := json.Marshal(v)
	must(t, err)
	return r.put(data)
}

// image is what a tag names.
func (r *repo) image(t testing.TB, tag string) ocispec.Descriptor {
	t.Helper()
	d, _, err := r.Resolve(t.Context(), tag)
	must(t, err)
	return d
}

// policy makes a policy from the text of a file whose keys are in dir.
func policy(t testing.TB, dir, format string, args ...any) *Policy {
	t.Helper()
	p, err := parsePolicy(fmt.Appendf(nil, format, args...), dir)
	must(t, err)
	return p
}

func TestScopes(t *testing.T) {
	r := newRepo("")
	p := policy(t, "", `
		default = "reject"
		[scope."r.example"]
		policy = "accept"
		[scope."r.example/bad"]
		policy = "reject"
		[scope."r.example/bad/but/good"]
		policy = "accept"
		[scope."other.example:5000/team"]
		policy = "accept"`)
	for name, want := range map[string]string{
		"r.example/app":              "",
		"r.example/a/b/c":            "",
		"r.example/bad":              `scope "r.example/bad"`,
		"r.example/bad/app":          `scope "r.example/bad"`,
		"r.example/badge":            "",
		"r.example/bad/but/good/app": "",
		"other.example:5000/team/a":  "",
		"other.example:5000/app":     "the default",
		"other.example/team/a":       "the default",
		"docker.io/library/busybox":  "the default",
	} {
		r.name = name
		err := p.Check(t.Context(), r, ocispec.Descriptor{Digest: digest.FromString("x")})
		if want == "" && err != nil || want != "" && (!errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if r.asked != 0 {
		t.Error("the registry was asked for what no policy needs")
	}
}

func TestPolicyRejections(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "junk.pem"), []byte("junk"), 0o600))
	key, err := os.ReadFile("testdata/cosign/cosign.pub")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "key.pub"), key, 0o600))
	for text, want := range map[string]string{
		"":                                     `default: "" is neither accept nor reject`,
		"default = 'maybe'":                    `default: "maybe"`,
		"defalt = 'accept'":                    "line 1: unknown key defalt",
		"default = 5":                          "has type integer, not string",
		"[scope.'r.example']":                  "default: ",
		"[scope.r]\nx = 1":                     "line 2: unknown key scope.r.x",
		"@[scope.'r.example']":                 `scope."r.example": policy: "" is none of`,
		"@[scope.'r.example']\npolicy = 'pgp'": `policy: "pgp" is none of`,
		"@[scope.'team']\npolicy = 'accept'":   "scope.team: is not a registry",
		"@[scope.'docker.io/']\npolicy = 'accept'":                                                                      "is not a registry",
		"@[scope.'https://r.example']\npolicy = 'accept'":                                                               "is not a registry",
		"@[scope.'r.example/App']\npolicy = 'accept'":                                                                   "is not a registry",
		"@[scope.'*']\npolicy = 'accept'":                                                                               "is not a registry",
		"@[scope.'r.example']\npolicy = 'accept'\nkeys = ['key.pub']":                                                   `keys has no meaning with the policy "accept"`,
		"@[scope.'r.example']\npolicy = 'cosign'":                                                                       "keys: names no public key",
		"@[scope.'r.example']\npolicy = 'cosign'\nkeys = ['none.pub']":                                                  "none.pub: no such file",
		"@[scope.'r.example']\npolicy = 'cosign'\nkeys = ['junk.pem']":                                                  "junk.pem holds no public key",
		"@[scope.'r.example']\npolicy = 'cosign'\nkeys = ['.']":                                                         "is not a file of at most",
		"@[scope.'r.example']\npolicy = 'cosign'\nkeys = ['key.pub']\nsigned_as = 'app'":                                `signed_as: "app" is not the full name`,
		"@[scope.'r.example']\npolicy = 'cosign'\nkeys = ['key.pub']\nsigned_as = 'r.example/app:1'":                    "signed_as: ",
		"@[scope.'r.example']\npolicy = 'cosign'\nkeys = ['key.pub']\nany_repository = true\nsigned_as = 'r.example/a'": "signed_as and any_repository",
		"@[scope.'r.example']\npolicy = 'reject'\nany_repository = true":                                                "any_repository has no meaning",
		"@[scope.'docker.io']\npolicy = 'reject'\n[scope.'registry-1.docker.io']\npolicy = 'accept'":                    "is set twice",
		"@[scope.'r.example']\npolicy = 'cosign'\nkeys = ['key.pub']\ncertificates = ['x']":                             "certificates has no meaning",
		"@[scope.'r.example']\npolicy = 'notation'":                                                                     "certificates: names no certificate",
		"@[scope.'r.example']\npolicy = 'notation'\ncertificates = ['junk.pem']":                                        "certificates: junk.pem: ",
		"@[scope.'r.example']\npolicy = 'notation'\ncertificates = ['key.pub']":                                         "certificates: key.pub: ",
		"@[scope.'r.example']\npolicy = 'notation'\ncertificates = ['junk.pem']\nkeys = ['key.pub']":                    "keys has no meaning",
	} {
		text = strings.Replace(text, "@", "default = 'accept'\n", 1)
		if _, err := parsePolicy([]byte(text), dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", text, err, want)
		}
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.toml")
	d := ocispec.Descriptor{Digest: digest.FromString("x")}
	for _, f := range []File{{}, {Path: path, Optional: true}} {
		p, err := f.Load()
		must(t, err)
		must(t, p.Check(t.Context(), newRepo("r.example/app"), d))
	}
	if _, err := (File{Path: path}).Load(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a policy that has to be there and is not: %v", err)
	}
	must(t, os.WriteFile(path, []byte("default = 'reject'"), 0o600))
	p, err := File{Path: path, Optional: true}.Load()
	must(t, err)
	if err := p.Check(t.Context(), newRepo("r.example/app"), d); !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	must(t, os.WriteFile(path, []byte("default = 'reject"), 0o600))
	if _, err := (File{Path: path, Optional: true}).Load(); err == nil || !strings.Contains(err.Error(), path+": line 1") {
		t.Error(err)
	}
}

// A registry that cannot be asked for signatures is told as such, and lets nothing through.
func TestBrokenRegistry(t *testing.T) {
	r := cosigned(t)
	d := r.image(t, "1")
	p := policy(t, "testdata/cosign", "default = 'reject'\n[scope.%q]\npolicy = 'cosign'\nkeys = ['cosign.pub']", r.name)
	for _, broken := range []error{registry.ErrUnavailable, registry.ErrUnauthorized, context.Canceled} {
		r.broken = broken
		if err := p.Check(t.Context(), r, d); !errors.Is(err, broken) || errors.Is(err, ErrUntrusted) {
			t.Errorf("%v: %v", broken, err)
		}
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add("default = 'accept'\n[scope.'r.example/team']\npolicy = 'reject'")
	f.Add("default = 'reject'\n[scope.'r.example:5000']\npolicy = 'cosign'\nkeys = ['cosign.pub']\nsigned_as = 'r.example/a'")
	f.Add("default = 'reject'\nscope.'docker.io/library' = {policy = 'accept'}")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePolicy([]byte(text), "testdata/cosign")
		if err != nil {
			return
		}
		// No scope may be one that never fits.
		for scope := range p.scopes {
			if r, where := p.ruleFor(scope + "/some/name"); r == nil || !strings.Contains(where, scope) {
				t.Errorf("scope %q: %v, %s", scope, r, where)
			}
		}
	})
}

// DNS knows no case: a pod must not get around a scope by writing its registry in capitals.
func TestScopeHasNoCase(t *testing.T) {
	for _, scope := range []string{"registry.example/team", "Registry.Example/team"} {
		p, err := parsePolicy(fmt.Appendf(nil, "default = \"accept\"\n[scope.%q]\npolicy = \"reject\"", scope), "")
		must(t, err)
		for _, name := range []string{"registry.example/team/app", "REGISTRY.example/team/app"} {
			if err := p.Check(t.Context(), newRepo(name), ocispec.Descriptor{}); !errors.Is(err, ErrUntrusted) {
				t.Errorf("scope %s, image %s: %v", scope, name, err)
			}
		}
	}
	const twice = `
default = "accept"
[scope."a.example"]
policy = "reject"
[scope."A.example"]
policy = "accept"`
	if _, err := parsePolicy([]byte(twice), ""); err == nil {
		t.Error("one scope with two rules is taken")
	}
}

// A link that leads nowhere is no absent policy, which would accept everything.
func TestDanglingPolicyRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.toml")
	_, err := File{Path: path, Optional: true}.Load()
	must(t, err)
	must(t, os.Symlink("gone/policy.toml", path))
	if _, err := (File{Path: path, Optional: true}).Load(); err == nil {
		t.Error("everything is accepted")
	}
}
