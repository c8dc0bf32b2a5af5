package lazy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
)

// Client asks the process. Its methods may be called concurrently.
type Client struct {
	dial  func(context.Context) (net.Conn, error)
	start func(context.Context) error
	http  *http.Client
}

// NewClient returns a client that connects with dial, and calls start if no one is there and
// someone has to be.
func NewClient(dial func(context.Context) (net.Conn, error), start func(context.Context) error) *Client {
	c := &Client{dial: dial, start: start}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		DisableKeepAlives: true, // calls are few, and a process that was replaced is no matter then
	}}
	return c
}

// Status is what the process is and has.
type Status struct {
	PID    int             `json:"pid"`
	Layers []digest.Digest `json:"layers"`
}

// Failure is how a call ended; empty if well.
type Failure struct {
	Kind string `json:"kind,omitempty"`
	Text string `json:"text,omitempty"`
}

// kinds are the errors that keep their kind on the way.
var kinds = map[string]error{"unsuitable": ErrUnsuitable, "not-shown": ErrNotShown, "invalid": ErrInvalid}

// FailureOf is what err, which may be nil, is on the wire.
func FailureOf(err error) Failure {
	if err == nil {
		return Failure{}
	}
	f := Failure{Text: err.Error()}
	for kind, is := range kinds {
		if errors.Is(err, is) {
			f.Kind = kind
		}
	}
	return f
}

func (f Failure) err() error {
	if f.Text == "" {
		return nil
	}
	if is := kinds[f.Kind]; is != nil {
		return &remoteError{is, f.Text}
	}
	return errors.New(f.Text)
}

// remoteError is the process's error: its text says the kind.
type remoteError struct {
	kind error
	text string
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// Show has a layer mounted at FS in its directory, by a process that is started if there is none.
// On error nothing is left there but Blob. Kinds: ErrUnsuitable, or others that a pull may not
// meet.
func (c *Client) Show(ctx context.Context, l Layer) error {
	if err := c.start(ctx); err != nil {
		return err
	}
	return c.end(ctx, http.MethodPut, layerPath(l.DiffID, ""), l)
}

// Await returns when a layer's blob is whole, and its digest right. Over the process's death it
// goes on with the next. Kinds: ErrNotShown, ErrInvalid, ErrGone.
func (c *Client) Await(ctx context.Context, diffID digest.Digest) error {
	return c.insist(ctx, http.MethodGet, layerPath(diffID, "/whole"), nil)
}

// Unpacked says where a layer's files are unpacked; its blob is let go. Kinds: ErrNotShown,
// ErrGone.
func (c *Client) Unpacked(ctx context.Context, diffID digest.Digest, dir string) error {
	return c.insist(ctx, http.MethodPut, layerPath(diffID, "/unpacked"), dir)
}

// insist asks until a process has answered, or none runs.
func (c *Client) insist(ctx context.Context, method, path string, body any) error {
	for {
		var f Failure
		err := c.call(ctx, method, path, body, &f)
		switch {
		case err == nil:
			return f.err()
		case errors.Is(err, ErrGone) || ctx.Err() != nil:
			return err
		}
		// The connection broke: the next process takes a moment to take the layers over.
		t := time.NewTimer(time.Second)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// Status asks a process that runs. ErrGone if none does.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.call(ctx, http.MethodGet, "/layers", nil, &s)
}

func layerPath(diffID digest.Digest, what string) string {
	return "/layers/" + url.PathEscape(diffID.String()) + what
}

func (c *Client) end(ctx context.Context, method, path string, body any) error {
	var f Failure
	if err := c.call(ctx, method, path, body, &f); err != nil {
		return err
	}
	return f.err()
}

func (c *Client) call(ctx context.Context, method, path string, body, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://coracle-lazy"+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return fmt.Errorf("ask coracle-lazy: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask coracle-lazy: %s %s: %s", method, path, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
		return fmt.Errorf("ask coracle-lazy: %w", err)
	}
	return nil
}
