package apiserver

import (
	"context"
	"crypto"
	"fmt"
	"sync"
	"sync/atomic"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// serviceAccountKeys is how service account tokens are made and verified. It implements
// serviceaccount.TokenGenerator and serviceaccount.PublicKeysGetter.
type serviceAccountKeys struct {
	path string
	now  atomic.Pointer[loadedKeys]

	mu        sync.Mutex
	listeners []serviceaccount.Listener
}

// loadedKeys are those of the file at one time: the first signs, and all verify.
type loadedKeys struct {
	serviceaccount.TokenGenerator
	serviceaccount.PublicKeysGetter
}

func loadServiceAccountKeys(path string) (*serviceAccountKeys, error) {
	k := &serviceAccountKeys{path: path}
	return k, k.reload()
}

// reload reads the file again.
func (k *serviceAccountKeys) reload() error {
	private, err := keyutil.PrivateKeyFromFile(k.path)
	if err != nil {
		return fmt.Errorf("the key of service account tokens cannot be read (%w); remove %s to get a new one", err, k.path)
	}
	if _, ok := private.(crypto.Signer); !ok {
		return fmt.Errorf("the key of service account tokens in %s cannot sign; remove it to get a new one", k.path)
	}
	generator, err := serviceaccount.JWTTokenGenerator(issuer, private)
	if err != nil {
		return fmt.Errorf("key of service account tokens in %s: %w", k.path, err)
	}
	public, err := keyutil.PublicKeysFromFile(k.path)
	if err != nil {
		return fmt.Errorf("keys of service account tokens in %s: %w", k.path, err)
	}
	getter, err := serviceaccount.StaticPublicKeysGetter(public)
	if err != nil {
		return fmt.Errorf("keys of service account tokens in %s: %w", k.path, err)
	}
	k.now.Store(&loadedKeys{generator, getter})
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.listeners {
		l.Enqueue()
	}
	return nil
}

// GenerateToken signs with the newest key.
func (k *serviceAccountKeys) GenerateToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	return k.now.Load().GenerateToken(ctx, claims, private)
}

// AddListener has reload tell a listener.
func (k *serviceAccountKeys) AddListener(l serviceaccount.Listener) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listeners = append(k.listeners, l)
}

// GetCacheAgeMaxSeconds is for those who verify tokens elsewhere: a new key signs at once.
func (k *serviceAccountKeys) GetCacheAgeMaxSeconds() int { return k.now.Load().GetCacheAgeMaxSeconds() }

// GetPublicKeys returns the keys that verify.
func (k *serviceAccountKeys) GetPublicKeys(ctx context.Context, keyIDHint string) []serviceaccount.PublicKey {
	return k.now.Load().GetPublicKeys(ctx, keyIDHint)
}

// reloadTokenKeys has the server use the keys of service account tokens that are in the file now.
func (s *Server) reloadTokenKeys() error {
	if k := s.tokenKeys.Load(); k != nil {
		return k.reload()
	}
	return nil // Run has yet to read them
}
