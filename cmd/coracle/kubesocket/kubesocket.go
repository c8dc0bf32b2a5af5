// Package kubesocket asks the cluster process, on the socket that only root can reach, what only it
// knows: how its parts are, and what decides about a connection.
package kubesocket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// ErrNone says that there is no such socket: no cluster process runs, or it is of an earlier
// release.
var ErrNone = errors.New("the cluster process does not run, or is of an earlier release")

// ErrUnknown says that the cluster process does not know the path: it is of an earlier release.
var ErrUnknown = errors.New("the cluster process is of an earlier release: 'coracle down', then 'coracle up'")

// Part is how a part of the cluster process is; cluster/health has the words.
type Part struct {
	Component   string    `json:"component"`
	Healthy     bool      `json:"healthy"`
	Since       time.Time `json:"since"`
	Message     string    `json:"message"`
	LastError   string    `json:"lastError"`
	LastErrorAt time.Time `json:"lastErrorAt"`
	Warnings    []string  `json:"warnings"`
}

// Parts returns how the parts are. A process of an earlier release has none.
func Parts(ctx context.Context, socket string) ([]Part, error) { return parts(ctx, socket, nil) }

// AwaitParts returns how the parts are as soon as each has said whether it works.
func AwaitParts(ctx context.Context, socket string) ([]Part, error) {
	return parts(ctx, socket, url.Values{"wait": {""}})
}

func parts(ctx context.Context, socket string, query url.Values) (all []Part, err error) {
	if err := Ask(ctx, socket, "/healthz/parts", query, &all); err != nil && !errors.Is(err, ErrUnknown) {
		return nil, err
	}
	return all, nil
}

// largest is the most that an answer may have.
const largest = 16 << 20

// Ask sends a GET and decodes what is answered.
func Ask(ctx context.Context, socket, path string, query url.Values, into any) error {
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: there is no %s", ErrNone, socket)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kube"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ask the cluster process at %s: %w", socket, err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, largest))
	if err != nil {
		return fmt.Errorf("ask the cluster process at %s: %w", socket, err)
	}
	if resp.StatusCode == http.StatusNotFound {
		return ErrUnknown
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(data)))
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("the cluster process at %s answers %s: %w", socket, path, err)
	}
	return nil
}
