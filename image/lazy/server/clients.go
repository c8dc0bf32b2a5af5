package server

import (
	"encoding/json"
	"sync"

	"github.com/coracle-project/coracle/image/registry"
)

// clients are the registry clients of all layers. Layers with the same settings share one, and so
// its limits of connections to each registry.
type clients struct {
	mu sync.Mutex
	of map[string]*sharedClient // by their settings, as JSON
}

type sharedClient struct {
	*registry.Client
	all   *clients
	key   string
	users int // guarded by clients.mu
}

// get returns a client with these settings; release gives it back.
func (c *clients) get(hosts registry.Config) (*sharedClient, error) {
	key, err := json.Marshal(hosts)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.of[string(key)]
	if s == nil {
		client, err := registry.NewClient(hosts)
		if err != nil {
			return nil, err
		}
		s = &sharedClient{Client: client, all: c, key: string(key)}
		if c.of == nil {
			c.of = map[string]*sharedClient{}
		}
		c.of[s.key] = s
	}
	s.users++
	return s, nil
}

func (s *sharedClient) release() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if s.users--; s.users == 0 {
		delete(s.all.of, s.key)
		s.Close()
	}
}
