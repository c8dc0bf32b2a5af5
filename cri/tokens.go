package cri

import (
	"crypto/rand"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// tokenLife is how long a URL can be used for: the kubelet does so at once.
	tokenLife = time.Minute
	// maxTokens bounds the URLs that no one has used yet.
	maxTokens = 1000
)

// tokens are the streams that were requested and not started yet. A token is all that a client
// needs, so it cannot be guessed, works once, and expires soon.
type tokens struct {
	mu   sync.Mutex
	open map[string]ticket
	// order has the tokens by age, so that old ones are found without a search.
	order []string
}

type ticket struct {
	serve http.HandlerFunc
	until time.Time
}

// add returns a token for serve, with its kind before it: kind/random. ResourceExhausted if
// too many wait to be used.
func (t *tokens) add(kind string, serve http.HandlerFunc) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.expireLocked(now)
	if len(t.open) >= maxTokens {
		return "", status.Errorf(codes.ResourceExhausted, "%d streams were asked for and not begun within %v", maxTokens, tokenLife)
	}
	token := kind + "/" + rand.Text()
	if t.open == nil {
		t.open = map[string]ticket{}
	}
	t.open[token] = ticket{serve, now.Add(tokenLife)}
	t.order = append(t.order, token)
	return token, nil
}

// take returns what a token is for, once.
func (t *tokens) take(token string) (http.HandlerFunc, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(time.Now())
	found, ok := t.open[token]
	delete(t.open, token)
	return found.serve, ok
}

func (t *tokens) expireLocked(now time.Time) {
	for len(t.order) > 0 {
		oldest, waits := t.open[t.order[0]]
		if waits && now.Before(oldest.until) {
			return
		}
		delete(t.open, t.order[0])
		t.order = t.order[1:]
	}
}
