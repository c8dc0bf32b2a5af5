// Package extender asks programs outside of the scheduler what they think of a pod's nodes:
// upstream's HTTP extenders. An extender can turn nodes down, score them, choose other pods to be
// removed for a pod, and bind pods.
//
// What an extender answers is not trusted. It can choose among what it was asked about and nothing
// else: an answer with a node or a pod that is not part of the question is an error, as is one that
// is too long, or that comes from elsewhere (a redirect). It can make the pods that it is asked
// about wait, for all of them if it is not ignorable; that is what it is for.
//
// A call ends with its time limit, and pods are scheduled one at a time. So an extender that has
// not answered three times in a row is left alone for a while: pods that need it fail at once
// meanwhile, and others are not kept waiting behind them.
package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
)

const (
	// defaultTimeout is upstream's.
	defaultTimeout = 5 * time.Second
	// patience is how often in a row an extender may fail to answer before it is left alone for
	// pause.
	patience = 3
	pause    = 10 * time.Second
	// room is how long an answer may be beyond four times what was asked.
	room = 1 << 20
)

// Extender is one of them. Its methods are safe for concurrent use.
type Extender struct {
	// Log is the scheduler's, which sets it; it discards by default.
	Log *slog.Logger

	config config.Extender
	client *http.Client
	mine   sets.Set[v1.ResourceName]

	mu     sync.Mutex
	silent int // calls in a row without an answer
	until  time.Time
}

// New returns the extender that c describes. It makes no call.
func New(c config.Extender) (*Extender, error) {
	transport, err := transportFor(&c)
	if err != nil {
		return nil, err
	}
	return NewOver(c, transport), nil
}

// NewOver returns the extender that c describes, reached over transport.
func NewOver(c config.Extender, transport http.RoundTripper) *Extender {
	if c.HTTPTimeout.Duration == 0 {
		c.HTTPTimeout.Duration = defaultTimeout
	}
	e := &Extender{Log: slog.New(slog.DiscardHandler), config: c, mine: sets.New[v1.ResourceName](), client: &http.Client{
		Transport: transport, Timeout: c.HTTPTimeout.Duration,
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			return fmt.Errorf("it sends the scheduler elsewhere, to %s", r.URL.Redacted())
		},
	}}
	for _, r := range c.ManagedResources {
		e.mine.Insert(v1.ResourceName(r.Name))
	}
	return e
}

// transportFor has upstream's meaning of enableHTTPS: without a CA the server is not verified.
func transportFor(c *config.Extender) (http.RoundTripper, error) {
	var r rest.Config
	if t := c.TLSConfig; t != nil {
		r.TLSClientConfig = rest.TLSClientConfig{
			Insecure: t.Insecure, ServerName: t.ServerName, CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile,
			CertData: t.CertData, KeyData: t.KeyData, CAData: t.CAData,
		}
	}
	if c.EnableHTTPS && len(r.CAFile) == 0 && len(r.CAData) == 0 {
		r.Insecure = true
	}
	tls, err := rest.TLSConfigFor(&r)
	if err != nil {
		return nil, err
	}
	return utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: tls}), nil
}

// Name is where it is.
func (e *Extender) Name() string { return e.config.URLPrefix }

// Ignorable says whether pods are scheduled without it when it fails.
func (e *Extender) Ignorable() bool { return e.config.Ignorable }

// Filters says whether it turns nodes down; Scores, Preempts and Binds likewise.
func (e *Extender) Filters() bool { return e.config.FilterVerb != "" }

// Scores says whether it scores nodes.
func (e *Extender) Scores() bool { return e.config.PrioritizeVerb != "" }

// Preempts says whether it chooses which pods are removed.
func (e *Extender) Preempts() bool { return e.config.PreemptVerb != "" }

// Binds says whether it binds pods.
func (e *Extender) Binds() bool { return e.config.BindVerb != "" }

// Wants says whether it is to be asked about pod: about all, or those with a resource that it
// manages.
func (e *Extender) Wants(pod *v1.Pod) bool {
	return len(e.mine) == 0 || e.manages(pod.Spec.Containers) || e.manages(pod.Spec.InitContainers)
}

func (e *Extender) manages(containers []v1.Container) bool {
	for i := range containers {
		for _, list := range []v1.ResourceList{containers[i].Resources.Requests, containers[i].Resources.Limits} {
			for name := range list {
				if e.mine.Has(name) {
					return true
				}
			}
		}
	}
	return false
}

// ErrSilent is that an extender is left alone. It needs not be logged: that the pause began is.
var ErrSilent = errors.New("it has not answered several times: it is asked again soon")

// ask sends args to the extender and reads its answer into result.
func (e *Extender) ask(ctx context.Context, verb string, args, result any) error {
	err := e.send(ctx, verb, args, result)
	if err != nil {
		return fmt.Errorf("extender %s: %s: %w", e.Name(), verb, err)
	}
	return nil
}

func (e *Extender) send(ctx context.Context, verb string, args, result any) error {
	if e.leftAlone() {
		return ErrSilent
	}
	body, err := json.Marshal(args)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(e.Name(), "/")+"/"+verb, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	limit := int64(room + 4*len(body))
	answer, err := e.answer(request, limit)
	if ctx.Err() == nil {
		e.heard(err == nil)
	}
	if err != nil {
		return err
	}
	if int64(len(answer)) > limit {
		return fmt.Errorf("its answer is longer than %d bytes", limit)
	}
	if err := json.Unmarshal(answer, result); err != nil {
		return fmt.Errorf("its answer is not what was asked for: %w", err)
	}
	return nil
}

func (e *Extender) answer(request *http.Request, limit int64) ([]byte, error) {
	response, err := e.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("its answer is %s", response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, limit+1))
}

func (e *Extender) leftAlone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.silent >= patience && time.Now().Before(e.until)
}

// heard counts. After a pause one more silence is enough for another.
func (e *Extender) heard(answered bool) {
	e.mu.Lock()
	before := e.silent
	if answered {
		e.silent = 0
	} else if e.silent++; e.silent >= patience {
		e.until = time.Now().Add(pause)
	}
	after := e.silent
	e.mu.Unlock()
	switch {
	case before < patience && after >= patience:
		e.Log.Warn("extender does not answer: it is asked only now and then until it does", "extender", e.Name(), "every", pause)
	case before >= patience && answered:
		e.Log.Info("extender answers again", "extender", e.Name())
	}
}
