package apiserver

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// identities are the users inside this process: each has a random token that lives in memory only
// and is worth nothing after the process has ended.
type identities struct {
	mu sync.RWMutex
	// tokens by user and groups, users by the hash of their token: finding one by hash takes the
	// same time whatever part of a guess is right.
	tokens map[string]string
	users  map[[sha256.Size]byte]*user.DefaultInfo
}

func newIdentities() *identities {
	return &identities{tokens: map[string]string{}, users: map[[sha256.Size]byte]*user.DefaultInfo{}}
}

// token returns the token of name in groups.
func (i *identities) token(name string, groups []string) string {
	groups = slices.Clone(groups)
	slices.Sort(groups)
	key := strings.Join(append([]string{name}, groups...), "\x00")
	i.mu.Lock()
	defer i.mu.Unlock()
	token, ok := i.tokens[key]
	if !ok {
		token = "in-process-" + rand.Text()
		i.tokens[key] = token
		i.users[sha256.Sum256([]byte(token))] = &user.DefaultInfo{Name: name, Groups: groups}
	}
	return token
}

// AuthenticateToken implements authenticator.Token.
func (i *identities) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	i.mu.RLock()
	info := i.users[sha256.Sum256([]byte(token))]
	i.mu.RUnlock()
	if info == nil {
		return nil, false, nil
	}
	copied := *info // the group adder appends to it
	copied.Groups = slices.Clone(info.Groups)
	response := &authenticator.Response{User: &copied}
	if audiences, ok := authenticator.AudiencesFrom(ctx); ok {
		response.Audiences = audiences
	}
	return response, true, nil
}
